"""Queries and passages: the tokens of texts, or precomputed vectors. numpy only."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.data.shards import TokenArray
from holdfast.engine.data_order import Indices

Item = NDArray[Any]  # the tokens of a text, or a vector


class Items(Protocol):
    """A token array, or the rows of an array of vectors."""

    def __len__(self) -> int:
        """The number of items."""

    def __getitem__(self, at: int, /) -> Item:
        """One item."""


def costs(items: Items) -> Indices:
    """What each item counts towards a micro-batch: its tokens, or 1 for a vector."""
    return items.lengths if isinstance(items, TokenArray) else np.ones(len(items), dtype=np.int64)
