"""Metrics of retrievers. numpy only.

Q queries, K found.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

RECALL_AT = (1, 5, 10, 100)
DEEPEST = 100

Judgements = Mapping[int, Mapping[int, int]]  # query -> passage that answers it -> score


def retrieval_metrics(found_QK: NDArray[np.int64], judgements: Judgements) -> dict[str, float]:
    """Recall, MRR, nDCG and MAP, as means over the queries that have an answer; row q of `found` is query q."""
    return {name: float(np.mean(values)) for name, values in query_metrics(found_QK, judgements).items()}


def query_metrics(found_QK: NDArray[np.int64], judgements: Judgements) -> dict[str, NDArray[np.float64]]:
    """The same metrics of each query that has an answer."""
    tables = [_query_metrics(found_QK[query], answers) for query, answers in judgements.items() if answers]
    return {name: np.array([table[name] for table in tables]) for name in tables[0]} if tables else {}


def judgements_of(qrels: NDArray[np.int64]) -> dict[int, dict[int, int]]:
    """Judgements by query, from rows of query, passage and score."""
    found: dict[int, dict[int, int]] = {}
    for query, passage, score in qrels.tolist():
        found.setdefault(query, {})[passage] = score
    return found


def _query_metrics(found_K: NDArray[np.int64], answers: Mapping[int, int]) -> dict[str, float]:
    gains = [answers.get(passage, 0) for passage in found_K[:DEEPEST].tolist()]
    hits = [at for at, gain in enumerate(gains) if gain > 0]
    best_gains = sorted(answers.values(), reverse=True)[:10]
    precisions = [(number + 1) / (at + 1) for number, at in enumerate(hits)]
    return {f"recall@{k}": sum(at < k for at in hits) / len(answers) for k in RECALL_AT} | {
        "hit@1": float(bool(hits) and hits[0] == 0),
        "mrr@10": 1 / (hits[0] + 1) if hits and hits[0] < 10 else 0.0,
        "ndcg@10": _dcg(gains[:10]) / _dcg(best_gains),
        "map@100": sum(precisions) / min(len(answers), DEEPEST),
    }


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(at + 2) for at, gain in enumerate(gains))
