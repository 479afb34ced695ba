"""Which models may be packed is found out by trying."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from holdfast.engine.fast.packing import ATTENTION
from holdfast.engine.fast.packing_check import proven_offset

SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


@pytest.mark.parametrize(
    ("make", "offset"),
    [
        (lambda: BertModel(BertConfig(**SMALL)), 0),
        (lambda: RobertaModel(RobertaConfig(**SMALL)), 2),
        (lambda: MPNetModel(MPNetConfig(**SMALL)), None),
        (lambda: ModernBertModel(ModernBertConfig(**SMALL, **MARKS, initializer_range=0.5)), 0),
    ],
    ids=["BERT", "RoBERTa counts from 2", "MPNet ignores it", "ModernBERT sees a window"],
)
def test_packing_is_used_only_if_results_match(make, offset):
    torch.manual_seed(0)
    model = make()
    assert proven_offset(model) == offset
    assert (model.config._attn_implementation == ATTENTION) == (offset is not None)
