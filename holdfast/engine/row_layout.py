"""Places texts in rows of a few sizes, for devices that compile a program for every new shape and keep it.

Several texts share a row, so little is computed for nothing. All sizes are rounded up to a few, so that a run has a
dozen shapes instead of new ones in nearly every step. What fills the rows up is computed but never read.

B texts of N tokens, R rows of T places each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FILLER = -1
_SHORTEST_ROW = 128  # places; attention within shorter rows saves next to nothing
_COSTLY_ROW = 1024  # attention within a row of this many places costs about as much as the rest of a layer

Places = NDArray[np.int64]


def compiles_every_shape(device: str) -> bool:
    """Whether the device compiles a program for each new shape of a tensor (pytorch#181485)."""
    return device.startswith("mps")


def round_up(count: int, unit: int = 1) -> int:
    """The next size in use, at most a quarter larger from 8 units on: 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, ..."""
    units = max(1, -(-count // unit))
    step = max(1, (1 << (units - 1).bit_length()) // (4 if units <= 8 else 8))
    return -(-units // step) * step * unit


def count_with_filler(count: int, device: str) -> int:
    """How many rows stand for this many items on a device."""
    return round_up(count) if compiles_every_shape(device) else count


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where each token of some texts is placed."""

    places_N: Places  # of the tokens in the flattened rows, text after text
    first_B: Places  # of each text's first token; place 0 for those that only fill up
    texts_RT: Places  # which text each place belongs to, or FILLER


def lay_out(lengths: Sequence[int]) -> RowLayout:
    """Place texts of these lengths in rows, the longest first, each in the first row that has space for it."""
    shortest = max(_SHORTEST_ROW, 1 << (max(lengths) - 1).bit_length())
    # Texts of little more than half a row would leave half of it empty: rows twice as long may be cheaper.
    filled = [(_fill(lengths, tokens), tokens) for tokens in (shortest, 2 * shortest)]
    (starts_B, rows), tokens = min(filled, key=lambda one: _cost(one[0][1], one[1]))
    sizes_B = np.asarray(lengths)
    within_N = np.arange(sizes_B.sum()) - np.repeat(np.cumsum(sizes_B) - sizes_B, sizes_B)
    places_N = np.repeat(starts_B, sizes_B) + within_N
    texts_RT = np.full(round_up(rows) * tokens, FILLER)
    texts_RT[places_N] = np.repeat(np.arange(len(sizes_B)), sizes_B)
    first_B = np.zeros(round_up(len(sizes_B)), dtype=np.int64)
    first_B[: len(sizes_B)] = starts_B
    return RowLayout(places_N, first_B, texts_RT.reshape(-1, tokens))


def _cost(rows: int, tokens: int) -> float:
    return round_up(rows) * tokens * (1 + tokens / _COSTLY_ROW)


def _fill(lengths: Sequence[int], tokens: int) -> tuple[Places, int]:
    """The place of each text's first token, and the number of rows."""
    starts, free = np.zeros(len(lengths), dtype=np.int64), np.full(len(lengths), tokens)
    for text in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        row = int(np.argmax(free >= lengths[text]))
        starts[text] = (row + 1) * tokens - free[row]
        free[row] -= lengths[text]
    return starts, int((free < tokens).sum())
