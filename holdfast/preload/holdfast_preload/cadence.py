"""When to make a checkpoint of our own: as often as it costs less than 1 % of the time, at most every ten seconds.

The same look finds a request to stop. With several processes the first one decides
and all follow, because saving is a thing they do together; they ask at steps all know beforehand.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from holdfast_preload import settings, stopping

SAVE_SECONDS = 60.0
_MOST_COST = 0.01
_OFTEN_SECONDS = 10.0  # a cheap save may come this often
_FIRST_SECONDS = 15.0  # what the first one costs is not known before
_LOOK_SECONDS = 1.0

Broadcast = Callable[[list[int]], list[int]]  # what the first process says, to all


class Cadence:
    """The rhythm of one training's checkpoints."""

    def __init__(self) -> None:
        self.last_end = self._last_look = time.monotonic()
        self.cost_seconds = 0.0
        self.last_step = -1
        self.must_stop = False
        self._next_agreement = self._last_agreement = 0

    def saved(self, step: int, cost_seconds: float) -> None:
        """Count from this checkpoint, the script's own or ours."""
        self.last_step, self.cost_seconds, self.last_end = step, cost_seconds, time.monotonic()

    def is_due(self, step: int, broadcast: Optional[Broadcast] = None) -> bool:
        """Say whether to save, or to stop, after this step; the same answer in every process."""
        now = time.monotonic()
        if broadcast is None:
            if not stopping.is_asked_by_signal() and now < self._last_look + min(_LOOK_SECONDS, self._wait_seconds()):
                return False
            self._last_look = now
            return self._wants(now)
        if step < self._next_agreement:
            return False
        a_step_seconds = (now - self._last_look) / max(1, step - self._last_agreement)
        self._last_look, self._last_agreement = now, step
        wants = self._wants(now)
        ahead = step + max(1, int(min(_LOOK_SECONDS, self._wait_seconds()) / max(a_step_seconds, 1e-3)))
        wants_all, stop, self._next_agreement = broadcast([int(wants), int(self.must_stop), ahead])
        self.must_stop = bool(stop)
        return bool(wants_all)

    def _wants(self, now: float) -> bool:
        self.must_stop = stopping.is_asked()
        return self.must_stop or now >= self.last_end + self._wait_seconds()

    def _wait_seconds(self) -> float:
        if not settings.get("may_save", True):
            return float("inf")
        most = float(settings.get("save_seconds", SAVE_SECONDS))
        if not most:
            return 0.0  # after every step, for tests
        if not self.cost_seconds:
            return min(most, _FIRST_SECONDS)
        return max(self.cost_seconds / _MOST_COST, min(most, _OFTEN_SECONDS))
