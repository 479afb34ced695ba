"""Splits the examples of one step into micro-batches: it changes what fits and how fast, never what is learned."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.order import Indices


def micro_batches(examples: Indices, lengths: NDArray[np.integer], most_tokens: int) -> Iterator[Indices]:
    """Sort by length, the same way whatever the split, and cut where the next text would be one too many."""
    ordered = examples[np.argsort(lengths[examples], kind="stable")]
    first, tokens = 0, 0
    for at, length in enumerate(lengths[ordered]):
        if at > first and tokens + length > most_tokens:
            yield ordered[first:at]
            first, tokens = at, 0
        tokens += int(length)
    yield ordered[first:]
