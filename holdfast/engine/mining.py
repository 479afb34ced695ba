"""Mines hard negatives: passages that the model ranks high for a query although they do not answer it.

A pure function of scores, the seed and the epoch; numpy only. Passages that may be unlabeled answers are excluded in
two ways: the first ranks can be skipped (the window), and a negative must score clearly below the answer (the margin).

E examples, Q queries, W ranks of the window.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.data_order import Indices, generator

Scores = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mining:
    """The settings of mining."""

    negatives: int = 1  # per example
    first_rank: int = 0  # ranks before this one are skipped; answers and hidden passages have no rank
    last_rank: int = 30  # the first rank beyond the window
    margin: float = 0.05  # a negative must score below the answer by this share of the answer's score
    from_epoch: int = 1  # 0: before the first step, with the initial model


def draw_negatives(
    scores_QW: Scores, rows_QW: Indices, answer_scores_E: Scores, query_E: Indices, how: Mining, seed: int, epoch: int
) -> NDArray[np.int32]:
    """Hard negatives of each example, drawn from its query's best passages; -1 where the window has too few."""
    scores_EW, rows_EW = scores_QW[query_E, how.first_rank :], rows_QW[query_E, how.first_rank :]
    limit_E = answer_scores_E - how.margin * np.abs(answer_scores_E)
    fits_EW = (scores_EW <= limit_E[:, None]) & (scores_EW > -np.inf)
    random_EW = np.where(fits_EW, generator(seed, "near-misses", epoch).random(scores_EW.shape), 2.0)
    at_EW = np.argsort(random_EW, axis=1, kind="stable")[:, : how.negatives]
    drawn_EW = np.where(np.take_along_axis(random_EW, at_EW, 1) > 1, -1, np.take_along_axis(rows_EW, at_EW, 1))
    mined = nothing_mined(len(query_E), how)
    mined[:, : drawn_EW.shape[1]] = drawn_EW
    return mined


def nothing_mined(examples: int, how: Mining) -> NDArray[np.int32]:
    """The value before any hard negatives are mined: all -1."""
    return np.full((examples, how.negatives), -1, dtype=np.int32)
