"""Checks that a model computes the same for packed texts as for each text alone.

A model may ignore the packed attention (MPNet), mask parts of a text in its own way, or count positions from another
number (RoBERTa). None of that raises an error, so it is tried on one long and one short text.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data.shards import TokenArray
from holdfast.engine.fast.encoder_layer import write_out_layers
from holdfast.engine.fast.packing import ATTENTION, pack, packed

_LONG, _SHORT = 300, 7


@torch.no_grad()
def proven_offset(model: Any) -> int | None:
    """Where this model's positions start when texts are packed, or None if it cannot be packed.

    Leaves the model set up for packed texts, or else for padded ones.
    """
    was_training = model.training
    model.eval()
    texts = _trial_texts(model.config)
    expected_NH = torch.cat([_alone(model, text) for text in texts])
    starts = np.cumsum([0, *map(len, texts)])
    array = TokenArray(np.concatenate(texts), starts)
    proven = None
    if getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(ATTENTION)
        write_out_layers(model, is_narrow=False)
        offsets = dict.fromkeys((0, (getattr(model.config, "pad_token_id", None) or 0) + 1))
        proven = next((offset for offset in offsets if _agrees(model, array, offset, expected_NH)), None)
    if proven is None:
        model.set_attn_implementation("sdpa" if getattr(model, "_supports_sdpa", False) else "eager")
    model.train(was_training)
    return proven


def _trial_texts(config: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    longest = min(_LONG, getattr(config, "max_position_embeddings", _LONG) - 4)
    low = config.vocab_size // 2  # above the ids that mean padding
    return [rng.integers(low, config.vocab_size, length).astype(np.int32) for length in (longest, _SHORT)]


def _alone(model: Any, text: np.ndarray) -> Tensor:
    ids_1T = torch.from_numpy(text.astype(np.int64))[None].to(model.device)
    hidden_TH: Tensor = model(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T)).last_hidden_state[0]
    return hidden_TH


def _agrees(model: Any, texts: TokenArray, offset: int, expected_NH: Tensor) -> bool:
    row = pack(texts, np.arange(len(texts)), str(model.device), offset)
    try:
        with packed(row):
            hidden_RTH = model(input_ids=row.ids_RT, position_ids=row.positions_RT).last_hidden_state
    except (TypeError, RuntimeError, ValueError, IndexError):
        return False
    found_NH = hidden_RTH.flatten(0, 1)
    if row.places_N is not None:
        found_NH = found_NH[torch.from_numpy(row.places_N).to(found_NH.device)]
    return bool(torch.allclose(found_NH, expected_NH, rtol=1e-3, atol=1e-3))
