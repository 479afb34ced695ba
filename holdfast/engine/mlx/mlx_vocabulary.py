"""Trains only those rows of the embedding table that the data uses; the exported table is complete again."""

from collections.abc import Iterable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.used_rows import decay_of, new_ids_of, used_rows, witness_row


class UsedTable:
    """The complete table, and which of its rows the weights hold; the last row of these shows the weight decay."""

    def __init__(self, weights: Weights, name: str, texts: Iterable[NDArray[np.int32]], padding: int):
        self._name, self._whole = name, weights[name]
        size, width = self._whole.shape
        self._used = used_rows(texts, size, padding)
        self.new_ids = new_ids_of(self._used, size)
        self.padding = int(self.new_ids[padding]) if padding in self._used else None
        rows = self._whole[mx.array(self._used)]
        weights[name] = mx.concatenate([rows, mx.array(witness_row(width))[None]])

    def restored(self, weights: Weights) -> Weights:
        """The weights with the complete table: trained rows, and decayed ones."""
        rows = np.asarray(weights[self._name])
        whole = np.array(self._whole) * np.float32(decay_of(rows[-1]))
        whole[self._used] = rows[:-1]
        return {**weights, self._name: mx.array(whole)}
