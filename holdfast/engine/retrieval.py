"""Exact search over a whole corpus, and retrieval metrics.

Scores are computed block by block and only each query's best are kept, so memory does not grow with the corpus. An
approximate index does not pay while the weights change: docs/engine.md has the figures.

Q queries, P passages, K found, H size of an embedding.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.engine.data_order import Indices

RECALL_AT = (1, 5, 10, 100)
DEEPEST = 100

_QUERIES_AT_ONCE = 1024
_PASSAGES_AT_ONCE = 16_384  # with 1,024 queries: 64 MB of scores

Judgements = Mapping[int, Mapping[int, int]]  # query -> passage that answers it -> score


def search(
    queries_QH: Tensor, corpus_PH: Tensor, k: int, hidden: Sequence[Indices] | None = None
) -> tuple[Tensor, Tensor]:
    """Each query's best passages, best first: scores and rows. `hidden` has the rows that each query must not find."""
    k = min(k, len(corpus_PH))
    found = []
    for first in range(0, len(queries_QH), _QUERIES_AT_ONCE):
        part_QH = queries_QH[first : first + _QUERIES_AT_ONCE]
        found.append(_best(part_QH, corpus_PH, k, hidden[first : first + _QUERIES_AT_ONCE] if hidden else None))
    scores, rows = zip(*found, strict=True)
    return torch.cat(scores), torch.cat(rows)


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


def _best(part_QH: Tensor, corpus_PH: Tensor, k: int, hidden: Sequence[Indices] | None) -> tuple[Tensor, Tensor]:
    best = part_QH.new_empty((len(part_QH), 0))
    rows = torch.empty((len(part_QH), 0), dtype=torch.int64, device=part_QH.device)
    hide = _pairs(hidden) if hidden else None
    for first in range(0, len(corpus_PH), _PASSAGES_AT_ONCE):
        block_PH = corpus_PH[first : first + _PASSAGES_AT_ONCE]
        scores_QP = part_QH @ block_PH.T
        if hide is not None:
            here = hide[:, (hide[1] >= first) & (hide[1] < first + len(block_PH))].to(part_QH.device)
            scores_QP[here[0], here[1] - first] = -torch.inf
        some, at = scores_QP.topk(min(k, len(block_PH)))
        best, rows = torch.cat([best, some], 1), torch.cat([rows, at + first], 1)
        if best.shape[1] > k:
            best, at = best.topk(k)
            rows = rows.gather(1, at)
    # Equal scores are in the order of the corpus.
    by_row = rows.argsort(1)
    best, rows = best.gather(1, by_row), rows.gather(1, by_row)
    best, at = best.sort(stable=True, dim=1, descending=True)
    return best, rows.gather(1, at)


def _pairs(hidden: Sequence[Indices]) -> Tensor:
    """(2, pairs): query and passage."""
    queries = np.repeat(np.arange(len(hidden)), [len(rows) for rows in hidden])
    return torch.from_numpy(np.stack([queries, np.concatenate([*hidden, np.zeros(0, np.int64)])]).astype(np.int64))


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
