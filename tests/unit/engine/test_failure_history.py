import math

from holdfast.core.event_log import EventLog
from holdfast.core.events import StepDone, TrainingStarted, TrainingStopped
from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.engine.save_schedule import FailureHistory, failure_history


def write_attempt(run, number, *times, is_stopped=False):
    """An attempt that began to train at the first of these times; with none, it was ended while it loaded."""
    attempt = attempt_folder(run, number)
    attempt.mkdir(parents=True)
    log = EventLog(attempt / EVENTS)
    for at in times:
        event = TrainingStarted(time=at, first_step=0, steps=9) if at == times[0] else StepDone(time=at, step=0)
        log.write(TrainingStopped(time=at, step=0) if is_stopped and at == times[-1] else event)


def test_failure_history_excludes_time_between_attempts(tmp_path):
    assert failure_history(tmp_path) == FailureHistory(0, 0)
    write_attempt(tmp_path, 1, 1_000.0, 1_040.0, 1_100.0)
    assert failure_history(tmp_path) == FailureHistory(0, 0)
    write_attempt(tmp_path, 2, 9_000.0, 9_200.0)
    write_attempt(tmp_path, 3, 20_000.0, 20_001.0)
    assert failure_history(tmp_path) == FailureHistory(100 + 200, 2)


def test_stopped_or_loading_attempt_is_no_failure(tmp_path):
    write_attempt(tmp_path, 1, 1_000.0, 1_500.0, is_stopped=True)
    write_attempt(tmp_path, 2)
    write_attempt(tmp_path, 3, 3_000.0, 3_100.0)
    write_attempt(tmp_path, 4)
    assert failure_history(tmp_path) == FailureHistory(500 + 100, 1)


def test_current_attempt_counts_towards_mtbf():
    assert FailureHistory(600, 0).mtbf_seconds(60) == math.inf
    assert FailureHistory(5, 1).mtbf_seconds(3_595) == 3_600
