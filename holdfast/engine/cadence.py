"""When to save: often enough that little work is at stake, seldom enough that saving stays cheap.

Pure arithmetic: the clock and the costs are arguments.
"""

from dataclasses import dataclass

_SHARE = 0.01  # of all time, for saving
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


def cheap_interval_seconds(cost: SaveCost) -> float:
    """How far apart saves must lie to cost at most one percent."""
    return max(_LEAST_SECONDS, cost.seconds / _SHARE)


def longest_interval_seconds(cost: SaveCost, at_stake_seconds: float) -> float:
    """How far apart they may lie: a save counts only when it is on the disk."""
    return max(at_stake_seconds - cost.write_seconds, at_stake_seconds / 2)


def is_time_to_save(since_seconds: float, step_seconds: float, cost: SaveCost, at_stake_seconds: float) -> bool:
    """Whether to save now, so long after the last save; the next chance comes a step later."""
    longest = longest_interval_seconds(cost, at_stake_seconds)
    return since_seconds >= cheap_interval_seconds(cost) or since_seconds + step_seconds > longest


def share_over_budget(cost: SaveCost, at_stake_seconds: float) -> float | None:
    """The share of time that saving takes where one percent cannot be kept; None where it can."""
    share = cost.seconds / max(longest_interval_seconds(cost, at_stake_seconds), 1e-9)
    return share if share > _SHARE else None
