import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, DistilBertConfig, RobertaConfig
from transformers.models.distilbert import DistilBertForSequenceClassification
from transformers.models.roberta import RobertaForSequenceClassification

from holdfast.data.shards import TokenArray
from holdfast.engine.fast.packing import ATTENTION, pack, pack_base, packed
from tests.tiny import WORDS, tiny_bert, tiny_texts

SMALL = {"vocab_size": WORDS, "max_position_embeddings": 64}
MODELS = {
    "roberta": lambda: RobertaForSequenceClassification(
        RobertaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, **SMALL)
    ),
    "distilbert": lambda: DistilBertForSequenceClassification(
        DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, **SMALL)
    ),
}


def packed_and_padded_logits(model, position_offset=0):
    texts, _ = tiny_texts(7)
    texts = [[max(2, token) for token in text] for text in texts]  # 0 and 1 are padding to some models
    array = TokenArray(
        np.concatenate(texts).astype(np.int32), np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    )
    model.eval()
    pad = model.config.pad_token_id or 0
    ids = torch.full((7, max(map(len, texts))), pad)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=mask).logits
        model.set_attn_implementation(ATTENTION)
        pack_base(model)
        row = pack(array, np.arange(7), "cpu", position_offset)
        with packed(row):
            return model(input_ids=row.ids_RT, position_ids=row.positions_RT).logits, padded


def test_packed_bert_matches_padded_bert(tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert(tmp_path))
    torch.testing.assert_close(*packed_and_padded_logits(model))


@pytest.mark.parametrize("name", MODELS)
def test_other_encoders_pack_too(name):
    torch.manual_seed(0)
    torch.testing.assert_close(*packed_and_padded_logits(MODELS[name](), position_offset=2 if name == "roberta" else 0))
