"""One step's texts as a row for `engine.captured`: arrays of few sizes, which say on the card where each text ends.

N tokens of the row, B texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.engine.captured import bucket
from holdfast.engine.packing import Pack


def step_row(texts: Sequence[NDArray[Any]], offset: int = 0, idle: int = 0) -> dict[str, NDArray[np.int64]]:
    """Texts one after the other, then `idle` texts of one token, then one that fills the row up to a bucket.

    Nobody reads the idle ones and the last; they make the arrays of many steps the same size.
    """
    lengths = np.concatenate([[len(text) for text in texts], np.ones(idle)]).astype(np.int64)
    tokens = int(lengths.sum())
    filler = bucket(tokens) - tokens
    bounds = np.concatenate([[0], np.cumsum(lengths), [tokens + filler]])
    positions = np.arange(tokens) - np.repeat(bounds[:-2], lengths)
    return {
        "ids": np.pad(np.concatenate(texts).astype(np.int64), (0, idle + filler)),
        "positions": np.concatenate([positions, np.arange(filler) % int(lengths.max())]) + offset,
        "bounds": bounds,
    }


def row_pack(arrays: Mapping[str, Tensor], longest: int) -> Pack:
    """The texts of such arrays on the card, without the one that fills up; none is longer than `longest`."""
    bounds = arrays["bounds"]
    most = max(longest, bucket(1))  # the one that fills up has less than a bucket
    return Pack(arrays["ids"][None], arrays["positions"][None], [], bounds[:-2], bounds.int(), most)
