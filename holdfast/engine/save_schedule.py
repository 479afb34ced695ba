"""When to save: often enough that little work is at stake, seldom enough that saving stays cheap.

The schedule is pure arithmetic (clock and costs are arguments); only `failure_history` reads the run folder.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.event_log import read_events, read_last_events
from holdfast.core.events import TrainingStarted, TrainingStopped
from holdfast.core.runfolder import EVENTS, attempt_folders

_COST_SHARE = 0.01  # of all time may go into saving
_MAX_COST_SHARE = 0.04  # where attempts fail soon
_MIN_INTERVAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """What the last save took."""

    stall_seconds: float = 0.0  # the loop waited
    cpu_seconds: float = 0.0  # the writer computed next to the loop
    write_seconds: float = 0.0  # until the checkpoint was on the disk

    @property
    def seconds(self) -> float:
        """Work that the loop could have done instead."""
        return self.stall_seconds + self.cpu_seconds


def cheap_interval_seconds(cost: SaveCost, mtbf_seconds: float = math.inf) -> float:
    """The shortest interval at which saving costs at most 1% of the time, or less where attempts fail soon.

    Where a run trains M seconds per failure and a save costs C, intervals of sqrt(2 C M) lose the least time
    (J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974).
    """
    if not cost.seconds:  # nothing was saved yet
        return _MIN_INTERVAL_SECONDS
    best = max(math.sqrt(2 * cost.seconds * mtbf_seconds), cost.seconds / _MAX_COST_SHARE)
    return max(_MIN_INTERVAL_SECONDS, min(cost.seconds / _COST_SHARE, best))


def longest_interval_seconds(cost: SaveCost, at_stake_seconds: float) -> float:
    """The longest interval that keeps `at_stake_seconds`: a save counts only once it is on the disk."""
    return max(at_stake_seconds - cost.write_seconds, at_stake_seconds / 2)


def is_time_to_save(
    since_seconds: float, step_seconds: float, cost: SaveCost, at_stake_seconds: float, mtbf_seconds: float = math.inf
) -> bool:
    """Whether to save now, `since_seconds` after the last save; the next chance comes one step later."""
    longest = longest_interval_seconds(cost, at_stake_seconds)
    return since_seconds >= cheap_interval_seconds(cost, mtbf_seconds) or since_seconds + step_seconds > longest


def share_over_budget(cost: SaveCost, at_stake_seconds: float) -> float | None:
    """The share of time that saving takes where 1% cannot be kept; None where it can."""
    share = cost.seconds / max(longest_interval_seconds(cost, at_stake_seconds), 1e-9)
    return share if share > _COST_SHARE else None


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """How long earlier attempts of a run trained, and how many of them lost work."""

    seconds: float  # that they trained, in total
    failures: int  # attempts that saved as their last act, or never began to train, lost nothing and do not count

    def mtbf_seconds(self, now_seconds: float) -> float:
        """Mean time between failures, including what this attempt has trained by now; infinite before the first."""
        return (self.seconds + now_seconds) / self.failures if self.failures else math.inf


def failure_history(run: Path) -> FailureHistory:
    """Read the failure history of a run from its attempts before the newest."""
    earlier = [_attempt_time(attempt) for attempt in attempt_folders(run)[:-1]]
    return FailureHistory(sum(seconds for seconds, _ in earlier), sum(has_failed for _, has_failed in earlier))


def _attempt_time(attempt: Path) -> tuple[float, bool]:
    """How long an attempt trained, and whether it lost work."""
    begun = next((event for event in read_events(attempt / EVENTS) if isinstance(event, TrainingStarted)), None)
    if not begun:
        return 0.0, False
    last = read_last_events(attempt / EVENTS)[-1]
    return max(0.0, last.time - begun.time), not isinstance(last, TrainingStopped)
