"""Packs texts into a few rows of the same length, so that little is padding and few shapes occur.

Each new shape is compiled and kept by the GPU's libraries, so lengths and counts are rounded up to a few buckets. A
token sees only its own text.

R rows, T tokens of a row, B texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from holdfast.engine.batches import BatchPart

_SHORTEST_ROW = 64  # tokens


@dataclass(frozen=True, slots=True)
class TextRows:
    """Some texts of a step in rows."""

    ids_RT: mx.array
    positions_RT: mx.array  # of each token in its text
    texts_RT: mx.array  # which text a token belongs to, from 1; 0 for padding
    token_places_RT: mx.array  # of each token among all tokens of the step
    text_places_B: mx.array  # of each text among all texts of the step
    first_B: mx.array  # where each text starts in the flattened rows; texts beyond `count` only fill the bucket
    count: int

    def seen(self) -> mx.array:
        """Whether the row's token sees the column's token, (R, 1, T, T)."""
        return (self.texts_RT[:, :, None] == self.texts_RT[:, None, :])[:, None]


def pack_rows(texts: Sequence[NDArray[Any]], part: BatchPart) -> TextRows:
    """Pack the texts of a part, in their order, each into the first row with enough room; the longest come first."""
    lengths = np.array([len(text) for text in texts])
    size = row_size(int(lengths.max()))
    row_of, column_of, used = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64), np.zeros(0, np.int64)
    for at in np.argsort(-lengths, kind="stable"):
        fits = np.flatnonzero(used + lengths[at] <= size)
        row = int(fits[0]) if len(fits) else len(used)
        if row == len(used):
            used = np.append(used, 0)
        row_of[at], column_of[at] = row, used[row]
        used[row] += lengths[at]
    rows = bucket_of(len(used))
    ids, positions, owners, places = (np.zeros((rows, size), np.int32) for _ in range(4))
    for at, text in enumerate(texts):
        where = row_of[at], slice(column_of[at], column_of[at] + len(text))
        ids[where], positions[where], owners[where] = text, np.arange(len(text)), at + 1
        places[where] = part.first_tokens[at] + np.arange(len(text))
    idle = (0, bucket_of(len(texts)) - len(texts))
    first = np.pad(row_of * size + column_of, idle).astype(np.int32)
    text_places = np.pad(part.places, idle).astype(np.int32)
    return TextRows(
        ids_RT=mx.array(ids),
        positions_RT=mx.array(positions),
        texts_RT=mx.array(owners),
        token_places_RT=mx.array(places),
        text_places_B=mx.array(text_places),
        first_B=mx.array(first),
        count=len(texts),
    )


def row_size(longest: int) -> int:
    """The length of rows that hold a text of this many tokens: a power of two."""
    return max(_SHORTEST_ROW, 1 << (longest - 1).bit_length())


def bucket_of(count: int) -> int:
    """The count rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: less than a third is added."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power
