"""Which rows of an embedding table the data uses; the others are neither trained nor saved. numpy only.

A row whose token never occurs has no gradient, so AdamW only applies weight decay to it: each step multiplies it by the
same factor. So a few thousand rows of thirty thousand are trained, clipped and saved, with the same result.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 22  # tokens
_NONE = np.iinfo(np.int64).max  # for a token without a row: looking it up is an error


def used_rows(texts: Iterable[NDArray[np.int32]], table_size: int, padding: int) -> NDArray[np.int64]:
    """The rows that these tokens and padding use, in order."""
    seen = np.zeros(table_size, dtype=bool)
    seen[padding : padding + 1] = True  # empty if the configuration names a token beyond the table
    for tokens in texts:
        for start in range(0, len(tokens), _AT_ONCE):
            seen[tokens[start : start + _AT_ONCE]] = True
    return np.flatnonzero(seen)


def new_ids_of(used: NDArray[np.int64], table_size: int) -> NDArray[np.int64]:
    """The row in the smaller table, by the row in the complete one."""
    new_ids = np.full(table_size, _NONE, dtype=np.int64)
    new_ids[used] = np.arange(len(used))
    return new_ids


def witness_row(size: int) -> NDArray[np.float32]:
    """A row that no token uses, which shows what weight decay does to unused rows.

    Its values differ, so that their mean does not depend on how any one of them rounds.
    """
    return np.linspace(1, 2, size, dtype=np.float32)


def decay_of(witness: NDArray[np.float32]) -> float:
    """What weight decay has multiplied unused rows by."""
    return float((witness.astype(np.float64) / witness_row(len(witness))).mean())
