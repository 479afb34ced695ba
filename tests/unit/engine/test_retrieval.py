import math

import numpy as np
import pytest
import torch

from holdfast.engine import corpus_search
from holdfast.engine.corpus_search import search
from holdfast.engine.retrieval import judgements_of, retrieval_metrics


@pytest.mark.parametrize("blocks", [(1000, 1000), (7, 13), (1, 1)])
def test_search_in_blocks_equals_a_full_sort(monkeypatch, blocks):
    monkeypatch.setattr(corpus_search, "_QUERIES_AT_ONCE", blocks[0])
    monkeypatch.setattr(corpus_search, "_PASSAGES_AT_ONCE", blocks[1])
    torch.manual_seed(0)
    queries, corpus = torch.randn(20, 8), torch.randn(50, 8)
    hidden = [np.arange(at, at + 3) for at in range(20)]
    scores = queries @ corpus.T
    for row, rows in enumerate(hidden):
        scores[row, rows] = -torch.inf
    expected = scores.sort(descending=True)
    found_scores, found_rows = search(queries, corpus, 12, hidden)
    torch.testing.assert_close(found_scores, expected.values[:, :12])
    assert torch.equal(found_rows, expected.indices[:, :12])


def test_small_corpus_is_returned_completely():
    scores, rows = search(torch.eye(3), torch.eye(3), 100)
    assert rows.shape == (3, 3)
    assert rows[1].tolist() == [1, 0, 2]  # equal scores in the order of the corpus
    assert scores[1].tolist() == [1.0, 0.0, 0.0]


def test_retrieval_metrics_match_hand_calculation():
    found = np.array([[4, 7, 1, 9, 2], [3, 0, 5, 6, 8]])
    qrels = np.array([[0, 7, 1], [0, 2, 1], [0, 30, 1], [1, 3, 1]])
    metrics = retrieval_metrics(found, judgements_of(qrels))
    first_dcg = 1 / math.log2(3) + 1 / math.log2(6)
    best_dcg = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert metrics == pytest.approx(
        {
            "recall@1": 0.5,
            "recall@5": (2 / 3 + 1) / 2,
            "recall@10": (2 / 3 + 1) / 2,
            "recall@100": (2 / 3 + 1) / 2,
            "hit@1": 0.5,
            "mrr@10": (1 / 2 + 1) / 2,
            "ndcg@10": (first_dcg / best_dcg + 1) / 2,
            "map@100": ((1 / 2 + 2 / 5) / 3 + 1) / 2,
        }
    )


def test_better_answers_count_more():
    qrels = judgements_of(np.array([[0, 1, 3], [0, 2, 1]]))
    first, second = (retrieval_metrics(np.array([found]), qrels)["ndcg@10"] for found in ([1, 2, 0], [2, 1, 0]))
    assert first == pytest.approx(1)
    assert second == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))


def test_no_judgements_give_no_metrics():
    assert retrieval_metrics(np.zeros((2, 5), dtype=np.int64), {}) == {}
