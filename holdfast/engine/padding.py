"""Pads texts to one length, for models that cannot be packed.

B texts, T tokens of the longest; both are rounded up on a device that compiles every new shape.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.engine.row_layout import compiles_every_shape, count_with_filler, round_up

_TEXT_UNIT = 16  # tokens


def pad(texts: Sequence[NDArray[Any]], padding_id: int, device: str) -> tuple[Tensor, Tensor]:
    """The texts' ids and their attention mask, (B, T). Rows that fill up B copy the first text."""
    rows, tokens = count_with_filler(len(texts), device), max(map(len, texts))
    if compiles_every_shape(device):
        tokens = round_up(tokens, _TEXT_UNIT)
    ids_BT, mask_BT = np.full((rows, tokens), padding_id), np.zeros((rows, tokens), dtype=np.int64)
    for row in range(rows):
        text = texts[row if row < len(texts) else 0]
        ids_BT[row, : len(text)], mask_BT[row, : len(text)] = text, 1
    return torch.from_numpy(ids_BT).to(device), torch.from_numpy(mask_BT).to(device)
