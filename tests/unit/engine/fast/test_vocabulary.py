from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from holdfast.engine.fast.thread_pool import GradientThreads
from holdfast.engine.fast.vocabulary import RowEmbedding, keep_used_rows


def small_bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )


def train(model: nn.Module, ids: torch.Tensor, steps: int = 30) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    model.eval()  # no dropout
    for _ in range(steps):
        model(input_ids=ids).last_hidden_state.pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_training_used_rows_matches_training_all_rows():
    tokens = np.array([3, 7, 7, 49, 12, 0], dtype=np.int32)
    whole, small = small_bert(), small_bert()
    train(whole, torch.from_numpy(tokens.astype(np.int64))[None])
    rows = keep_used_rows(small, [tokens[:3], tokens[3:]])
    assert rows is not None
    assert small.get_input_embeddings().weight.shape == (6, 16)
    train(small, torch.from_numpy(rows.new_ids[tokens])[None])
    rows.restore()
    wanted, found = whole.get_input_embeddings().weight, small.get_input_embeddings().weight
    assert not torch.allclose(wanted[20], small_bert().get_input_embeddings().weight[20])  # decay did something
    torch.testing.assert_close(found, wanted)


def test_padding_row_has_no_gradient():
    model = small_bert()  # pads with 0
    rows = keep_used_rows(model, [np.array([5, 0, 9], dtype=np.int32)])
    assert rows is not None
    assert model.get_input_embeddings().padding_idx == rows.new_ids[0]


def test_tied_embedding_table_stays_complete():
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config.tie_word_embeddings = True
    assert keep_used_rows(LlamaForCausalLM(config), [np.array([1, 2], dtype=np.int32)]) is None


def test_sparse_row_gradient_equals_dense_gradient():
    torch.manual_seed(0)
    plain, by_row = nn.Embedding(20, 4, padding_idx=3), RowEmbedding(20, 4, padding_idx=3)
    by_row.load_state_dict(plain.state_dict())
    threads_pool = GradientThreads(by_row, 1)

    @contextmanager
    def loss_of(ids):
        yield by_row(ids).pow(3).sum()

    for step in ([[5, 3, 5, 9]], [[1, 5, 19], [0, 1, 1]]):
        plain.zero_grad()
        by_row.zero_grad(set_to_none=True)
        for ids in (torch.tensor([part]) for part in step):
            plain(ids).pow(3).sum().backward()
            threads_pool.backward([ids], loss_of)
        torch.testing.assert_close(by_row.weight.grad, plain.weight.grad)


def test_used_row_table_maps_old_ids():
    tokens = np.array([3, 7, 7, 49, 12], dtype=np.int32)  # 0, which pads, is not among them
    padded = torch.tensor([[3, 7, 7, 49, 12, 0, 0]])
    whole, small = small_bert(), small_bert()
    train(whole, padded)
    rows = keep_used_rows(small, [tokens])
    assert rows is not None
    rows.take_old_ids()
    train(small, padded)
    rows.restore()
    torch.testing.assert_close(small.get_input_embeddings().weight, whole.get_input_embeddings().weight)
