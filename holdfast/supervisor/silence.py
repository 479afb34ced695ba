"""Counts how long an attempt has been silent. Pure; time is an argument.

Not all time counts: not while the machine slept, while the supervisor itself was held up, while a debugger holds the
process; and while other work takes the processors only the share that the attempt was given.
"""

from holdfast.supervisor.verdict import Judged, Verdict

_LONGEST_TURN_SECONDS = 5.0  # what is longer between two looks, the supervisor did not see
_NOT_STILL = (Verdict.STARVED, Verdict.DEBUGGED, Verdict.MOVING, Verdict.CRASH_LOOP)


class SilenceClock:
    """The clocks of one attempt."""

    def __init__(self, now: float):
        self._progress_at = self._looked_at = now
        self._moved_at = self._verdict_at = now
        self._verdict = Verdict.MOVING
        self.counted_seconds = 0.0  # of silence, as far as it counts

    def silent_seconds(self, now: float) -> float:
        """Since a step or a phase changed."""
        return now - self._progress_at

    def still_seconds(self, now: float) -> float:
        """Since anything moved at all."""
        return now - self._moved_at

    def verdict_seconds(self, now: float) -> float:
        """Since the verdict changed."""
        return now - self._verdict_at

    def note_progress(self, now: float) -> None:
        """A step or a phase has changed."""
        self._progress_at = self._moved_at = self._looked_at = now
        self.counted_seconds = 0.0

    def note_sleep(self, now: float) -> None:
        """The machine slept: what came before says nothing about now."""
        self._progress_at = self._moved_at = self._verdict_at = self._looked_at = now
        self.counted_seconds = 0.0

    def count(self, now: float, judged: Judged) -> None:
        """Count the time since the last look."""
        unseen = max(now - self._looked_at - _LONGEST_TURN_SECONDS, 0.0)
        turn = now - self._looked_at - unseen
        counted = self.counted_seconds + turn * judged.given_share
        # After a debugger's pause the count begins again: what came before it was perhaps its work too.
        self.counted_seconds = 0.0 if judged.verdict is Verdict.DEBUGGED else counted
        self._moved_at = now if judged.verdict in _NOT_STILL else min(self._moved_at + unseen, now)
        if judged.verdict is not self._verdict:
            self._verdict, self._verdict_at = judged.verdict, now
        self._looked_at = now
