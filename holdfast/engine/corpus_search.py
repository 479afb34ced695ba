"""Exact search over a whole corpus with torch, and the mining that uses it.

Scores are computed block by block and only each query's best are kept, so memory does not grow with the corpus. An
approximate index does not pay while the weights change: docs/engine.md has the figures.

E examples, Q queries, P passages, H size of an embedding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.data_order import Indices
from holdfast.engine.mining import Mining, draw_negatives

_QUERIES_AT_ONCE = 1024
_PASSAGES_AT_ONCE = 16_384  # with 1,024 queries: 64 MB of scores


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


def mine(
    queries_QH: Tensor,
    corpus_PH: Tensor,
    query_E: Indices,
    answer_E: Indices,
    hidden: Sequence[Indices],
    how: Mining,
    seed: int,
    epoch: int,
) -> Tensor:
    """Hard negatives of each example, from these embeddings."""
    scores_QW, rows_QW = search(queries_QH, corpus_PH, how.last_rank, hidden)
    query = torch.from_numpy(query_E).to(corpus_PH.device)
    answers_EH = corpus_PH[torch.from_numpy(answer_E).to(corpus_PH.device)]
    answer_scores_E = (queries_QH[query] * answers_EH).sum(1)
    found = (scores_QW.cpu().numpy(), rows_QW.cpu().numpy(), answer_scores_E.cpu().numpy())
    return torch.from_numpy(draw_negatives(*found, query_E, how, seed, epoch))


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
