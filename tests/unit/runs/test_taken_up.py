"""How a run is taken up again: who has it, and what earlier attempts left."""

import json

import pytest

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.plan import Fallback
from holdfast.core.records import AttemptStart, Outcome, write_record
from holdfast.core.runfolder import (
    BEAT,
    DECISION,
    OUTCOME,
    REQUEST,
    attempt_folder,
    attempt_folders,
)
from holdfast.runs.earlier_attempts import read_earlier
from holdfast.runs.lease import hold, holder


@pytest.fixture
def run(tmp_path):
    (tmp_path / REQUEST).write_text(json.dumps({"kind": "command", "command": ["python", "train.py"]}))
    return tmp_path


def begin_attempt(run, number: int = 1, step: int = 12):
    attempt = attempt_folder(run, number)
    attempt.mkdir(parents=True)
    write_record(attempt, AttemptStart(number=int(attempt.name), changes={"threads": 1}))
    BeatWriter(attempt / BEAT).enter("step", step, 100)
    return attempt


def end_attempt(run, number: int, outcome: str, action: str = "", **more):
    attempt = begin_attempt(run, number)
    write_artifact(attempt, OUTCOME, Outcome(number=number, outcome=outcome, **more))
    if action:
        write_artifact(
            attempt, DECISION, {"action": action, "reason": {"kind": "remedy"}, "changes": {"loader_workers": 0}}
        )


def test_resume_of_supervised_run_is_refused(run):
    with hold(run), pytest.raises(RequestError, match="already has a supervisor"), hold(run):
        pass
    assert holder(run) is None


def test_a_hundred_attempts_stay_in_order(run):
    for number in (2, 99, 100, 9):
        attempt_folder(run, number).mkdir(parents=True)
    assert [int(folder.name) for folder in attempt_folders(run)] == [2, 9, 99, 100]


def test_an_interrupted_attempt_keeps_its_changes(run):
    begin_attempt(run)
    earlier = read_earlier(run, report=lambda event: None)
    assert earlier.next_number == 2
    assert earlier.changes == {"threads": 1}
    assert earlier.counted[0].outcome == "interrupted"
    assert earlier.counted[0].is_external


def test_a_decision_survives_its_supervisor(run):
    end_attempt(run, 1, "hung", action="fallback")
    earlier = read_earlier(run, report=lambda event: None)
    assert earlier.changes == {"loader_workers": 0}
    assert len(earlier.counted) == 1


def test_chosen_fallback_is_tried_after_resume(run):
    end_attempt(run, 1, "hung")
    fallback = {
        "title": "load data in the main process",
        "change": {"loader_workers": 0},
        "cost": "slower",
        "keeps": True,
    }
    decision = {
        "action": "fallback",
        "reason": {"kind": "remedy"},
        "fallback": fallback,
        "changes": {"loader_workers": 0},
    }
    write_artifact(attempt_folder(run, 1), DECISION, decision)
    earlier = read_earlier(run, report=lambda event: None)
    assert earlier.fallback == Fallback("load data in the main process", {"loader_workers": 0}, "slower")


def test_attempts_before_the_last_failure_do_not_count(run):
    for number in (1, 2):
        end_attempt(run, number, "died", action="fallback")
    end_attempt(run, 3, "died", action="stop")
    end_attempt(run, 4, "died", action="fallback")
    earlier = read_earlier(run, report=lambda event: None)
    assert [one.number for one in earlier.counted] == [4]


def test_an_interrupted_attempt_keeps_its_start_time(run):
    attempt = begin_attempt(run)
    write_record(attempt, AttemptStart(number=int(attempt.name), started=1000.5))
    (attempt / "late").touch()
    assert read_earlier(run, report=lambda event: None).counted[0].started == 1000.5


def test_a_run_can_be_resumed_on_a_full_disk(run, monkeypatch):
    begin_attempt(run)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.runs.earlier_attempts.write_record", refuse)
    earlier = read_earlier(run, report=lambda event: None)
    assert (earlier.next_number, earlier.counted[0].outcome) == (2, "interrupted")


def test_resuming_a_failed_run_takes_the_best_settings(run):
    end_attempt(run, 1, "died", action="fallback", step_reached=40, changes={"threads": 2})
    end_attempt(run, 2, "died", action="stop", step_reached=10, changes={"threads": 1})
    earlier = read_earlier(run, report=lambda event: None)
    assert (earlier.next_number, earlier.counted, earlier.changes) == (3, (), {"threads": 2})


def test_resume_reports_a_full_disk(run, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.runs.lease.write_record", refuse)
    with pytest.raises(MachineError) as refused, hold(run):
        pass
    assert refused.value.slug == "disk-full"
    assert holder(run) is None
