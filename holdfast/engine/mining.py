"""Mines hard negatives: passages that the model ranks high for a query although they do not answer it.

A pure function of the embeddings, the seed and the epoch. Passages that may be unlabeled answers are excluded in two
ways: the first ranks can be skipped (the window), and a negative must score clearly below the answer (the margin).

E examples, Q queries, P passages, W ranks of the window, H size of an embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.engine.data_order import Indices, generator
from holdfast.engine.retrieval import search


@dataclass(frozen=True, slots=True, kw_only=True)
class Mining:
    """The settings of mining."""

    negatives: int = 1  # per example
    first_rank: int = 0  # ranks before this one are skipped; answers and hidden passages have no rank
    last_rank: int = 30  # the first rank beyond the window
    margin: float = 0.05  # a negative must score below the answer by this share of the answer's score
    from_epoch: int = 1  # 0: before the first step, with the initial model


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
    """Hard negatives of each example, drawn from its query's window; -1 where the window has too few."""
    scores_QW, rows_QW = search(queries_QH, corpus_PH, how.last_rank, hidden)
    scores_QW, rows_QW = scores_QW[:, how.first_rank :], rows_QW[:, how.first_rank :]
    query = torch.from_numpy(query_E).to(corpus_PH.device)
    answers_EH = corpus_PH[torch.from_numpy(answer_E).to(corpus_PH.device)]
    answer_scores_E = (queries_QH[query] * answers_EH).sum(1)
    limit_E = answer_scores_E - how.margin * answer_scores_E.abs()
    scores_EW = scores_QW[query]
    fits_EW = (scores_EW <= limit_E[:, None]) & (scores_EW > -torch.inf)
    random_EW = torch.from_numpy(generator(seed, "near-misses", epoch).random(tuple(scores_EW.shape)))
    random_EW = random_EW.masked_fill(~fits_EW.cpu(), 2.0)
    lowest, at = random_EW.sort(stable=True, dim=1)
    drawn_EW = rows_QW[query].cpu().gather(1, at).masked_fill(lowest > 1, -1)[:, : how.negatives]
    mined = nothing_mined(len(query_E), how)
    mined[:, : drawn_EW.shape[1]] = drawn_EW
    return mined


def nothing_mined(examples: int, how: Mining) -> Tensor:
    """The value before any hard negatives are mined: all -1."""
    return torch.full((examples, how.negatives), -1, dtype=torch.int32)
