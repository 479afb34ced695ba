"""Splits the examples of one step into micro-batches: it changes what fits and how fast, never what is learned."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.order import Indices

_FAIR = 0.75  # the most of a micro-batch that one of its parts may be; otherwise all hands work on one part


@dataclass(frozen=True, slots=True)
class Part:
    """Texts that are computed together: their examples, and where they and their tokens lie among all of the step."""

    examples: Indices
    places: Indices
    first_tokens: Indices


def first_text() -> Part:
    """The first example alone, for trials."""
    one = np.zeros(1, dtype=np.int64)
    return Part(one, one, one)


def micro_batches(examples: Indices, lengths: NDArray[np.integer], most_tokens: int) -> Iterator[Indices]:
    """Sort by length, the same way whatever the split, and cut where the next text would be one too many."""
    ordered = examples[np.argsort(lengths[examples], kind="stable")]
    first, tokens = 0, 0
    for at, length in enumerate(lengths[ordered]):
        if at > first and tokens + length > most_tokens:
            yield ordered[first:at]
            first, tokens = at, 0
        tokens += int(length)
    yield ordered[first:]


def shared_out(
    examples: Indices, lengths: NDArray[np.integer], most_tokens: int, hands: int = 1
) -> Iterator[list[Part]]:
    """Micro-batches, each in parts of about as many tokens for so many hands, or whole where that cannot be."""
    first_place, first_token = 0, 0
    for micro in micro_batches(examples, lengths, most_tokens):
        costs = lengths[micro]
        starts = first_token + np.cumsum(costs) - costs
        yield [Part(micro[some], first_place + some, starts[some]) for some in share(costs, hands)]
        first_place += len(micro)
        first_token += int(costs.sum())


def share(costs: NDArray[np.integer], hands: int) -> list[Indices]:
    """Numbers of the items for each hand, about equal in cost; most neighbours stay together."""
    left, shares = np.arange(len(costs)), []
    for others in range(min(hands, len(costs)) - 1, 0, -1):
        first, end = _window(costs[left], others)
        shares.append(left[first:end])
        left = np.delete(left, slice(first, end))
    shares.append(left)
    is_fair = max(costs[some].sum() for some in shares) <= _FAIR * costs.sum()
    return shares if is_fair else [np.arange(len(costs))]


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
