"""How long an attempt has been silent."""

from holdfast.supervisor.silence import SilenceClock
from holdfast.supervisor.verdict import Judged, Verdict

WAITS = Judged(verdict=Verdict.WAIT_INPUT, words="waits")


def test_the_time_before_progress_does_not_count():
    clock = SilenceClock(100.0)
    clock.count(103.0, WAITS)
    clock.note_progress(105.0)
    clock.count(105.0, WAITS)
    assert clock.counted_seconds == 0
    clock.count(107.0, WAITS)
    assert clock.counted_seconds == clock.silent_seconds(107.0) == 2
