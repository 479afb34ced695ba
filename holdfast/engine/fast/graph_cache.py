"""Frees the graphs that MPS has compiled once they fill too much memory.

MPS keeps a graph for every shape it has met: 13.7 GB after 315 shapes (pytorch#181485). Rows of a few sizes keep the
number small; this is for models that make shapes of their own. Releases of torch without `clear_graph_cache`, such as
2.13.0, cannot free graphs at all.
"""

from collections.abc import Callable

import psutil
import torch

_MOST_BYTES = 2 << 30  # beyond what the process held after its first steps
_LOOK_STEPS = 50


class GraphCache:
    """The memory of one process on MPS outside of its tensors."""

    def __init__(self) -> None:
        self._clear: Callable[[], None] | None = getattr(torch.mps, "clear_graph_cache", None)
        self._first: int | None = None

    def after_step(self, step: int) -> None:
        """Look now and then; free all graphs when their memory has grown too far."""
        if self._clear is None or step % _LOOK_STEPS:
            return
        held = psutil.Process().memory_info().rss - torch.mps.driver_allocated_memory()
        if self._first is None:
            self._first = held
        elif held > self._first + _MOST_BYTES:
            self._clear()
            self._first = None
