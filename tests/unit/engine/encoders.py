"""The kinds of encoder whose layers the engine rewrites, in small: model, config, and where its positions begin."""

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from tests.tiny import WORDS

SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
KINDS = {
    "bert": (BertForSequenceClassification, BertConfig, 0),
    "roberta": (RobertaForSequenceClassification, RobertaConfig, 2),
    "electra": (ElectraForSequenceClassification, ElectraConfig, 0),
}
