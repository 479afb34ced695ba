"""What earlier supervisors of a run left: how long they trained, and what a short life says of a plan."""

from holdfast.core.artifacts import write_artifact
from holdfast.core.records import AttemptStart, Outcome, read_record, write_record
from holdfast.core.runfolder import EVENTS, OUTCOME, attempt_folder
from holdfast.runs.earlier_attempts import read_earlier, read_pauses
from holdfast.supervisor.outcome import tried_of


def begin_attempt(run, number: int):
    attempt = attempt_folder(run, number)
    attempt.mkdir(parents=True)
    return attempt


def end_attempt(run, number: int, outcome: str, started: float, seconds: float):
    attempt = begin_attempt(run, number)
    write_artifact(attempt, OUTCOME, Outcome(number=number, outcome=outcome, started=started, seconds=seconds))


def cut_off(run, number: int, started: float, last_word: float):
    attempt = begin_attempt(run, number)
    write_record(attempt, AttemptStart(number=number, started=started))
    (attempt / EVENTS).write_text(f'{{"event": "step_done", "step": 3, "time": {last_word}}}\n')
    return attempt


def test_earlier_attempt_times_are_known_without_their_end(tmp_path):
    end_attempt(tmp_path, 1, "died", 1000.0, 30.0)
    end_attempt(tmp_path, 2, "stopped", 1031.0, 9.0)
    cut_off(tmp_path, 3, 90_000.0, 90_012.5)
    assert read_earlier(tmp_path, lambda event: None).seconds == 30.0 + 9.0 + 12.5
    end_attempt(tmp_path, 4, "finished", 95_000.0, 5.0)
    assert read_pauses(tmp_path) == [(1030.0, 1031.0), (1040.0, 90_000.0), (90_012.5, 95_000.0)]


def test_interrupted_attempt_is_not_an_early_kill(tmp_path):
    attempt = cut_off(tmp_path, 1, 50.0, 51.0)
    read_earlier(tmp_path, lambda event: None)
    assert read_record(attempt, Outcome).seconds == 1.0
    assert tried_of(read_record(attempt, Outcome)).seconds == float("inf")


def test_attempt_without_events_has_no_time(tmp_path):
    write_record(begin_attempt(tmp_path, 1), AttemptStart(number=1, started=50.0))
    assert read_earlier(tmp_path, lambda event: None).seconds == 0.0
