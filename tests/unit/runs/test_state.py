"""The state of a run, folded from events and read from its folder."""

import json
import os
from pathlib import Path

import pytest

from holdfast.core import events as ev
from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.records import Outcome
from holdfast.core.runfolder import BEAT, CHILD, EVENTS, OUTCOME, REQUEST, RESULT, SAMPLES, START, attempt_folder
from holdfast.runs.state import RunReader, fold, peak_bytes, read_state
from holdfast.supervisor.members import boot_id, start_ticks_of

STARTED = ev.AttemptStarted(number=1, time=0.0)
TRAINING = ev.TrainingStarted(first_step=0, steps=100, epoch_steps=50, time=0.0)


def step(number: int, at: float, loss: float = 1.0) -> ev.StepDone:
    return ev.StepDone(step=number, loss=loss, time=at)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_artifact(tmp_path, REQUEST, {"kind": "command", "command": ["python", "train.py"]})
    return tmp_path


def begin_attempt(run: Path, number: int = 1, step: int = 12) -> Path:
    attempt = attempt_folder(run, number)
    attempt.mkdir(parents=True)
    write_artifact(attempt, START, {"number": number, "changes": {"threads": 1}, "started": 1000.0})
    BeatWriter(attempt / BEAT).enter("step", step, 100)
    return attempt


def test_speed_and_time_left_come_from_recent_steps():
    state = fold([STARTED, TRAINING, *(step(at, at * 2.0) for at in range(10))])
    assert (state.step, state.steps, state.steps_per_second) == (10, 100, 0.5)
    assert state.seconds_left == 180.0


def test_an_evaluation_is_not_a_slow_step():
    evaluated = ev.Evaluated(step=3, metrics={"accuracy": 0.5}, time=60.0)
    state = fold(
        [STARTED, TRAINING, *(step(at, float(at)) for at in range(3)), evaluated, step(3, 61.0), step(4, 62.0)]
    )
    assert state.curves.seconds_per_step == 1.0
    assert state.scores == {"validation": {"accuracy": 0.5}}
    assert state.curves.evaluation_seconds == 58.0


def test_a_later_attempt_continues_from_its_checkpoint():
    first = [STARTED, TRAINING, *(step(at, float(at)) for at in range(9)), ev.CheckpointSaved(step=5)]
    ended = ev.AttemptEnded(number=1, outcome="died", slug="unknown", step=9)
    second = [ev.AttemptStarted(number=2), ev.Resumed(step=5), ev.TrainingStarted(first_step=5, steps=100)]
    state = fold([*first, ended, *second])
    assert (state.step, state.saved_step, state.attempts[1].first_step) == (5, 5, 5)
    assert [attempt.outcome for attempt in state.attempts] == ["died", "running"]


def test_loading_attempt_keeps_the_previous_step():
    state = fold([STARTED, TRAINING, step(40, 1.0), ev.AttemptStarted(number=2)])
    assert (state.step, state.steps) == (41, 100)


def test_repeated_step_counts_once_and_curves_are_thinned():
    state = fold([STARTED, TRAINING, *(step(at, float(at)) for at in range(20_000)), step(100, 1.0, loss=3.0)])
    losses = state.curves.losses()
    assert len(losses) <= 4001
    assert losses[0][0] == 8
    assert (101, 3.0) in losses


def test_quiet_ends_with_the_next_step():
    quiet = ev.Quiet(seconds=5.0, phase="step", step=1)
    assert fold([STARTED, TRAINING, step(0, 1.0), quiet]).attempt.quiet == quiet
    assert fold([STARTED, TRAINING, quiet, step(0, 1.0)]).attempt.quiet is None


def test_a_disk_is_full_until_something_is_saved_again():
    failed = ev.CheckpointFailed(step=12, reason="No space left on device", is_full=True)
    assert fold([STARTED, ev.CheckpointSaved(step=6), failed]).attempt.is_disk_full
    assert not fold([STARTED, failed, ev.CheckpointSaved(step=20)]).attempt.is_disk_full
    assert not fold([STARTED, ev.CheckpointFailed(step=1, reason="read-only")]).attempt.is_disk_full


def test_a_script_that_reports_no_steps_is_timed_from_outside():
    seen = [
        ev.Progressed(phase="step", step=at, steps=50, resident_bytes=at * 10, time=at * 1.0) for at in range(1, 11)
    ]
    state = fold([STARTED, *seen])
    assert (state.steps_per_second, state.seconds_left, state.attempt.peak_bytes) == (1.0, 40.0, 100)


def test_a_trainers_own_log_gives_losses_and_evaluations():
    logged = [ev.Logged(step=10, values={"loss": 0.5}), ev.Logged(step=10, values={"eval_accuracy": 0.9})]
    state = fold([STARTED, *logged])
    assert (state.loss, state.curves.evaluations) == (0.5, {10: {"accuracy": 0.9}})


def test_the_pipeline_prepares_then_proves_then_trains():
    assert fold([ev.StageStarted(stage="detect")]).state == "preparing"
    assert fold([ev.StageStarted(stage="prove")]).state == "proving"
    waiting = ev.MachinesAwaited(present=["a"], wanted=2, seconds_left=9.0)
    assert fold([waiting]).state == "waiting"
    assert fold([waiting, STARTED]).state == "training"


def test_engine_that_saved_when_its_supervisor_was_killed_was_interrupted(run):
    EventLog(begin_attempt(run) / EVENTS).write(ev.TrainingStopped(step=12))
    assert read_state(run, is_supervised=False).attempt.outcome == "interrupted"
    write_artifact(attempt_folder(run, 1), OUTCOME, Outcome(number=1, outcome="stopped", step_reached=12))
    assert read_state(run, is_supervised=False).attempt.outcome == "stopped"


def test_run_without_supervisor_is_stopped_and_interrupted(run):
    begin_attempt(run)
    state = read_state(run)
    assert (state.state, state.phase, state.step, state.steps) == ("stopped", "step", 12, 100)
    assert (state.attempts[0].outcome, state.attempts[0].changes) == ("interrupted", {"threads": 1})


def test_a_supervised_run_is_training_with_loss_and_time_left(run):
    attempt = begin_attempt(run, step=20)
    EventLog(attempt / EVENTS).write(ev.StepDone(step=19, loss=0.5, time=100.0))
    EventLog(attempt / EVENTS).write(ev.StepDone(step=29, loss=0.5, time=105.0))
    EventLog(attempt / SAMPLES).write(ev.TreeSampled(phase="step", step=20, resident_bytes=77, time=100.0))
    state = read_state(run, is_supervised=True)
    assert (state.state, state.loss, state.step, state.seconds_left) == ("training", 0.5, 30, 35.0)
    assert peak_bytes(attempt) == 77


def test_a_process_that_outlived_its_supervisor_still_trains(run):
    attempt = begin_attempt(run)
    pid = os.getppid()  # any process that lives
    write_artifact(attempt, CHILD, {"pid": pid, "start_ticks": start_ticks_of(pid), "boot_id": boot_id()})
    state = read_state(run)
    assert (state.state, state.is_orphaned, state.attempts[0].outcome) == ("training", True, "running")


def test_an_ended_run_is_as_its_result_says(run):
    write_artifact(run, RESULT, {"state": "failed", "seconds": 9.0})
    write_artifact(
        begin_attempt(run), OUTCOME, Outcome(number=1, outcome="hung", diagnosis="script-deadlock", seconds=4.0)
    )
    state = read_state(run)
    assert (state.state, state.seconds, state.has_ended) == ("failed", 9.0, True)
    assert (state.attempt.outcome, state.attempt.slug, state.attempt.seconds) == ("hung", "script-deadlock", 4.0)


def test_reader_reads_new_events(run):
    attempt = begin_attempt(run)
    log, reader = EventLog(attempt / EVENTS), RunReader(run)
    log.write(TRAINING)
    assert len(reader.read(is_supervised=True).curves.steps) == 0
    log.write(step(0, 1.0))
    assert len(reader.read(is_supervised=True).curves.steps) == 1
    with (attempt / EVENTS).open("a") as file:
        file.write('{"event": "step_done", "step"')  # half a line
    assert len(reader.read(is_supervised=True).curves.steps) == 1


def test_of_a_long_attempt_only_the_end_is_read(run):
    log = EventLog(begin_attempt(run, step=20_000) / EVENTS)
    for event in (TRAINING, ev.CheckpointSaved(step=7), *(step(at, float(at)) for at in range(20_000))):
        log.write(event)
    state = read_state(run, is_supervised=True)
    assert (state.step, state.steps, state.saved_step) == (20_000, 100, 7)
    assert min(state.curves.steps) > 5000


@pytest.mark.parametrize("name", ["nothing here", "."])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    with pytest.raises(RequestError):
        read_state(tmp_path / name)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"state": 3}', json.dumps({"attempts": None})])
def test_a_damaged_file_is_as_if_it_were_missing(run, content):
    attempt = begin_attempt(run)
    for path in (run / RESULT, run / EVENTS, attempt / OUTCOME, attempt / EVENTS, attempt / SAMPLES, attempt / START):
        path.write_text(content)
    assert read_state(run).attempt.step == 12
