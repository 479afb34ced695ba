"""When to save: often enough that little work is at stake, seldom enough that saving stays cheap.

Pure arithmetic: the clock and the costs are arguments.
"""

import math
from dataclasses import dataclass

_SHARE = 0.01  # of all time, for saving
_MOST_SHARE = 0.04  # where attempts end soon
_LEAST_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """What the last save took."""

    stall_seconds: float = 0.0  # the loop waited
    cpu_seconds: float = 0.0  # the writer computed beside the loop
    write_seconds: float = 0.0  # until it was on the disk

    @property
    def seconds(self) -> float:
        """Work that the loop could have done instead."""
        return self.stall_seconds + self.cpu_seconds


def cheap_interval_seconds(cost: SaveCost, life_seconds: float = math.inf) -> float:
    """How far apart saves must lie to cost at most one percent, or nearer where attempts live so short.

    Where an attempt lives M seconds in the mean and a save costs C, the least is lost at intervals of sqrt(2 C M)
    (J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974).
    """
    if not cost.seconds:  # nothing was saved yet
        return _LEAST_SECONDS
    best = max(math.sqrt(2 * cost.seconds * life_seconds), cost.seconds / _MOST_SHARE)
    return max(_LEAST_SECONDS, min(cost.seconds / _SHARE, best))


def longest_interval_seconds(cost: SaveCost, at_stake_seconds: float) -> float:
    """How far apart they may lie: a save counts only when it is on the disk."""
    return max(at_stake_seconds - cost.write_seconds, at_stake_seconds / 2)


def is_time_to_save(
    since_seconds: float, step_seconds: float, cost: SaveCost, at_stake_seconds: float, life_seconds: float = math.inf
) -> bool:
    """Whether to save now, so long after the last save; the next chance comes a step later.

    `life_seconds` is what this run trains for each attempt that dies, infinite while none has.
    """
    longest = longest_interval_seconds(cost, at_stake_seconds)
    return since_seconds >= cheap_interval_seconds(cost, life_seconds) or since_seconds + step_seconds > longest


def share_over_budget(cost: SaveCost, at_stake_seconds: float) -> float | None:
    """The share of time that saving takes where one percent cannot be kept; None where it can."""
    share = cost.seconds / max(longest_interval_seconds(cost, at_stake_seconds), 1e-9)
    return share if share > _SHARE else None
