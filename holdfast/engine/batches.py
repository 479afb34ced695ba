"""Splits the examples of one step among ranks and into micro-batches, which never changes what is learned."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.data_order import Indices
from holdfast.engine.ranks import ALONE, Ranks

_FAIR = 0.75  # the largest share of a micro-batch that one part may have; otherwise it is not split


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Texts that are computed together: their examples, and their positions among all texts and tokens of the step."""

    examples: Indices
    places: Indices
    first_tokens: Indices
    is_idle: bool = False  # computed only to stay in lockstep with other ranks; its loss does not count


def first_example() -> BatchPart:
    """The first example alone, for trial runs."""
    one = np.zeros(1, dtype=np.int64)
    return BatchPart(one, one, one)


def micro_batches(examples: Indices, lengths: NDArray[np.integer], max_tokens: int) -> Iterator[Indices]:
    """Sort by length, in the same order for any split, and cut where the next text would exceed the maximum."""
    ordered = examples[np.argsort(lengths[examples], kind="stable")]
    for some in _cut(lengths[ordered], max_tokens):
        yield ordered[some]


def split_step(
    examples: Indices, lengths: NDArray[np.integer], max_tokens: int, workers: int = 1, ranks: Ranks = ALONE
) -> Iterator[list[BatchPart]]:
    """This rank's micro-batches, each split evenly by tokens among the workers, or not at all where that is uneven.

    A rank may have none in the last step of an epoch; in lockstep it has as many as the others, some of them idle.
    """
    ordered = examples[np.argsort(lengths[examples], kind="stable")]
    costs = lengths[ordered]
    starts = np.cumsum(costs) - costs
    shares = balanced_shares(costs, ranks.size)
    micros = [shares[ranks.rank][micro] for micro in _cut(costs[shares[ranks.rank]], max_tokens)]
    for places in micros:
        parts = (places[some] for some in share(costs[places], workers))
        yield [BatchPart(ordered[at], at, starts[at]) for at in parts]
    if ranks.in_lockstep:
        most = max(len(list(_cut(costs[own], max_tokens))) for own in shares)
        for _ in range(len(micros), most):
            yield [BatchPart(ordered[:1], np.zeros(1, dtype=np.int64), starts[:1], is_idle=True)]


def share(costs: NDArray[np.integer], workers: int) -> list[Indices]:
    """Items for each worker, about equal in cost; all for one worker where a part would be far too large."""
    shares = [some for some in balanced_shares(costs, workers) if len(some)]
    is_fair = max(costs[some].sum() for some in shares) <= _FAIR * costs.sum()
    return shares if is_fair else [np.arange(len(costs))]


def balanced_shares(costs: NDArray[np.integer], count: int) -> list[Indices]:
    """Items for each of `count` shares, about equal in cost; most neighbors stay together."""
    left, shares = np.arange(len(costs)), []
    for others in range(min(count, len(costs)) - 1, 0, -1):
        first, end = _window(costs[left], others)
        shares.append(left[first:end])
        left = np.delete(left, slice(first, end))
    shares.append(left)
    return shares + [left[:0]] * (count - len(shares))


def _cut(costs: NDArray[np.integer], max_tokens: int) -> Iterator[Indices]:
    """Neighbors that fit together; an item that exceeds the maximum is alone."""
    first, tokens = 0, 0
    for at, cost in enumerate(costs):
        if at > first and tokens + cost > max_tokens:
            yield np.arange(first, at)
            first, tokens = at, 0
        tokens += int(cost)
    if len(costs):
        yield np.arange(first, len(costs))


def _window(costs: NDArray[np.integer], others: int) -> tuple[int, int]:
    """The neighbors that come closest to a fair share, leaving at least one item for each of the others."""
    ends = np.concatenate([[0], np.cumsum(costs)])
    target = ends[-1] / (others + 1)
    first = np.arange(len(costs))
    most = np.minimum(len(costs), first + len(costs) - others)
    above = np.searchsorted(ends, ends[:-1] + target)
    end = np.clip(np.stack([above - 1, above]), first + 1, most)
    miss = np.abs(ends[end] - ends[:-1] - target)
    which, at = np.unravel_index(miss.argmin(), miss.shape)
    return int(at), int(end[which, at])
