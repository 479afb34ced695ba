import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from holdfast.data.shards import TokenArray
from holdfast.engine.fast.encoder_layer import narrow_last_layer
from holdfast.engine.fast.packing import ATTENTION, pack, pack_base, packed
from holdfast.engine.fast.rng import DropoutRng, replace_dropout
from tests.tiny import tiny_texts
from tests.unit.engine.encoders import KINDS, SMALL


def loss_and_gradients(kind: str, is_narrow: bool, first_example: int = 0) -> tuple[torch.Tensor, dict]:
    kind_of, config, offset = KINDS[kind]
    torch.manual_seed(0)
    model = kind_of(config(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).train()
    model.set_attn_implementation(ATTENTION)
    texts, _ = tiny_texts(5)
    starts = np.cumsum([0, *map(len, texts)])
    row = pack(TokenArray(np.concatenate(texts).astype(np.int32), starts), np.arange(5), "cpu", offset)
    pack_base(model, is_narrow=is_narrow and narrow_last_layer(model.base_model))
    with packed(row):
        logits = model(input_ids=row.ids_RT, position_ids=row.positions_RT).logits
    logits.pow(2).sum().backward()
    return logits, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_first_tokens_alone_give_equal_logits_and_gradients(kind):
    wide, narrow = loss_and_gradients(kind, is_narrow=False), loss_and_gradients(kind, is_narrow=True)
    torch.testing.assert_close(narrow[0], wide[0])
    assert narrow[1].keys() == wide[1].keys()
    for name, gradient in narrow[1].items():
        torch.testing.assert_close(gradient, wide[1][name], rtol=1e-4, atol=1e-5)


def test_dropout_does_not_depend_on_the_step_split():
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SMALL)).train()
    model.set_attn_implementation(ATTENTION)
    draws = DropoutRng(3)
    replace_dropout(model, draws)
    pack_base(model, is_narrow=narrow_last_layer(model.base_model))
    texts, _ = tiny_texts(5)
    starts = np.cumsum([0, *map(len, texts)])
    array = TokenArray(np.concatenate(texts).astype(np.int32), starts)

    def logits_of(first: int, last: int) -> torch.Tensor:
        draws.at(step=4, first_token=int(starts[first]), first_example=first)
        row = pack(array, np.arange(first, last), "cpu")
        with packed(row, draws), torch.no_grad():
            return model(input_ids=row.ids_RT, position_ids=row.positions_RT).logits

    torch.testing.assert_close(torch.cat([logits_of(0, 2), logits_of(2, 5)]), logits_of(0, 5))
