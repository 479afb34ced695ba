"""Gradient checkpointing: layers are computed again in the backward pass, from the same texts with the same dropout.

The backward pass of a GPU runs in another thread, and that of a two-tower step after all its forward passes, so each
layer must bring along what it knew when it was computed first.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.engine.fast.packing import now
from holdfast.engine.fast.rng import Place


def recompute_layers(model: Any, device: str) -> None:
    """Keep only the input of each layer for the backward pass."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        known: list[_Known] = []
        return _first(known, device), _second(known)

    options = {"use_reentrant": False, "context_fn": contexts}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a layer depends on besides its input and its weights."""

    current_pass: dict[str, Any]
    place: Place | None
    mps_generator: Tensor | None  # torch 2.13 restores those of the CPU and of CUDA by itself, but not this one

    @classmethod
    def on(cls, device: str) -> "_Known":
        generator = torch.mps.get_rng_state() if device.startswith("mps") else None
        return cls(dict(vars(now)), now.rng.place() if now.rng else None, generator)

    def restore(self) -> None:
        vars(now).update(self.current_pass)
        if now.rng and self.place:
            now.rng.return_to(self.place)
        if self.mps_generator is not None:
            torch.mps.set_rng_state(self.mps_generator)


@contextmanager
def _first(known: list[_Known], device: str) -> Iterator[None]:
    known.append(_Known.on(device))
    yield


@contextmanager
def _second(known: list[_Known]) -> Iterator[None]:
    before = _Known.on("cpu" if known[0].mps_generator is None else "mps")
    known[0].restore()
    try:
        yield
    finally:
        before.restore()
