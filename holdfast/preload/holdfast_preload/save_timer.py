"""When to make an extra checkpoint: as often as it costs less than 1% of the time, at most every ten seconds.

The same check finds a request to stop. With several processes the first one decides for all, because they save
together; they exchange decisions at steps that all know in advance.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from holdfast_preload import graceful_stop, script_settings

SAVE_SECONDS = 60.0
_MOST_COST = 0.01
_MIN_SECONDS = 10.0  # between cheap saves
_FIRST_SECONDS = 15.0  # the cost of a save is unknown before the first one
_LOOK_SECONDS = 1.0

Broadcast = Callable[[list[int]], list[int]]  # sends the first process's numbers to all


class SaveTimer:
    """Decides when one training saves."""

    def __init__(self, most_seconds: float = float("inf")) -> None:
        self._most_seconds = most_seconds  # between saves, also expensive ones, up to a tenth of the time
        self.last_end = self._last_look = time.monotonic()
        self.cost_seconds = 0.0
        self.last_step = -1
        self.must_stop = False
        self._next_agreement = self._last_agreement = 0

    def saved(self, step: int, cost_seconds: float) -> None:
        """Start counting from this checkpoint, the script's own or ours."""
        self.last_step, self.cost_seconds, self.last_end = step, cost_seconds, time.monotonic()

    def is_due(self, step: int, broadcast: Optional[Broadcast] = None) -> bool:
        """Whether to save, or to stop, after this step; the same answer in every process."""
        now = time.monotonic()
        if broadcast is None:
            if not graceful_stop.is_asked_by_signal() and now < self._last_look + min(
                _LOOK_SECONDS, self._wait_seconds()
            ):
                return False
            self._last_look = now
            return self._wants(now)
        if step < self._next_agreement:
            return False
        step_seconds = (now - self._last_look) / max(1, step - self._last_agreement)
        self._last_look, self._last_agreement = now, step
        wants = self._wants(now)
        ahead = step + max(1, int(min(_LOOK_SECONDS, self._wait_seconds()) / max(step_seconds, 1e-3)))
        wants_all, stop, self._next_agreement = broadcast([int(wants), int(self.must_stop), ahead])
        self.must_stop = bool(stop)
        return bool(wants_all)

    def _wants(self, now: float) -> bool:
        self.must_stop = graceful_stop.is_asked()
        return self.must_stop or now >= self.last_end + self._wait_seconds()

    def _wait_seconds(self) -> float:
        if not script_settings.get("may_save", True):
            return float("inf")
        most = min(float(script_settings.get("save_seconds", SAVE_SECONDS)), self._most_seconds)
        if not most:
            return 0.0  # after every step, for tests
        if not self.cost_seconds:
            return min(most, _FIRST_SECONDS)
        cheap = min(self.cost_seconds / _MOST_COST, max(self._most_seconds, self.cost_seconds * 10))
        return max(cheap, min(most, _MIN_SECONDS))
