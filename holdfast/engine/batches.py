"""Splits the examples of one step among ranks and into micro-batches.

It changes what fits and how fast, never what is learned.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.order import Indices
from holdfast.engine.ranks import ALONE, Ranks

_FAIR = 0.75  # the most of a micro-batch that one of its parts may be; otherwise all hands work on one part


@dataclass(frozen=True, slots=True)
class Part:
    """Texts that are computed together: their examples, and where they and their tokens lie among all of the step."""

    examples: Indices
    places: Indices
    first_tokens: Indices
    is_idle: bool = False  # computed to keep step with other ranks; its loss counts nothing


def first_text() -> Part:
    """The first example alone, for trials."""
    one = np.zeros(1, dtype=np.int64)
    return Part(one, one, one)


def micro_batches(examples: Indices, lengths: NDArray[np.integer], most_tokens: int) -> Iterator[Indices]:
    """Sort by length, the same way whatever the split, and cut where the next text would be one too many."""
    ordered = examples[np.argsort(lengths[examples], kind="stable")]
    for some in _cut(lengths[ordered], most_tokens):
        yield ordered[some]


def shared_out(
    examples: Indices, lengths: NDArray[np.integer], most_tokens: int, hands: int = 1, ranks: Ranks = ALONE
) -> Iterator[list[Part]]:
    """This rank's micro-batches, each in parts of about as many tokens for so many hands, or whole where not fair.

    A rank may have none, in the last step of an epoch; in lockstep it has as many as the others, some of them idle.
    """
    ordered = examples[np.argsort(lengths[examples], kind="stable")]
    costs = lengths[ordered]
    starts = np.cumsum(costs) - costs
    shares = share_among(costs, ranks.size)
    micros = [shares[ranks.rank][micro] for micro in _cut(costs[shares[ranks.rank]], most_tokens)]
    for places in micros:
        parts = (places[some] for some in share(costs[places], hands))
        yield [Part(ordered[at], at, starts[at]) for at in parts]
    if ranks.in_lockstep:
        most = max(len(list(_cut(costs[own], most_tokens))) for own in shares)
        for _ in range(len(micros), most):
            yield [Part(ordered[:1], np.zeros(1, dtype=np.int64), starts[:1], is_idle=True)]


def share(costs: NDArray[np.integer], hands: int) -> list[Indices]:
    """Numbers of the items for each hand, about equal in cost; all to one where a part would be far too large."""
    shares = [some for some in share_among(costs, hands) if len(some)]
    is_fair = max(costs[some].sum() for some in shares) <= _FAIR * costs.sum()
    return shares if is_fair else [np.arange(len(costs))]


def share_among(costs: NDArray[np.integer], many: int) -> list[Indices]:
    """Numbers of the items for each of so many, about equal in cost; most neighbours stay together."""
    left, shares = np.arange(len(costs)), []
    for others in range(min(many, len(costs)) - 1, 0, -1):
        first, end = _window(costs[left], others)
        shares.append(left[first:end])
        left = np.delete(left, slice(first, end))
    shares.append(left)
    return shares + [left[:0]] * (many - len(shares))


def _cut(costs: NDArray[np.integer], most_tokens: int) -> Iterator[Indices]:
    """Neighbours that fit together, by number; one that fits nowhere is alone."""
    first, tokens = 0, 0
    for at, cost in enumerate(costs):
        if at > first and tokens + cost > most_tokens:
            yield np.arange(first, at)
            first, tokens = at, 0
        tokens += int(cost)
    if len(costs):
        yield np.arange(first, len(costs))


def _window(costs: NDArray[np.integer], others: int) -> tuple[int, int]:
    """The neighbours that come closest to a fair share, leaving at least one item to each of the others."""
    ends = np.concatenate([[0], np.cumsum(costs)])
    wanted = ends[-1] / (others + 1)
    first = np.arange(len(costs))
    most = np.minimum(len(costs), first + len(costs) - others)
    above = np.searchsorted(ends, ends[:-1] + wanted)
    end = np.clip(np.stack([above - 1, above]), first + 1, most)
    miss = np.abs(ends[end] - ends[:-1] - wanted)
    which, at = np.unravel_index(miss.argmin(), miss.shape)
    return int(at), int(end[which, at])
