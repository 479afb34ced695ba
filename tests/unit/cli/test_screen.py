"""What a person sees of a run."""

from pathlib import Path

import pytest

from holdfast.cli import screen
from holdfast.cli.screen import RunView, Screen, run_lines, spark_line
from holdfast.core import events as ev
from holdfast.core.event_log import EventLog
from holdfast.core.evidence import Cause
from holdfast.core.observations import Activity, LeftProcess, TreeVerdict, Verdict
from holdfast.core.records import CommandRequest
from holdfast.core.runfolder import EVENTS, OUTPUT, attempt_folder
from holdfast.core.scores import ModelMetrics, SplitMetrics
from holdfast.runs.event_wording import full_disk_text
from holdfast.runs.state import AttemptState, Records, RunState, fold

HUNG = AttemptState(
    number=1,
    folder=Path("a"),
    outcome="hung",
    step=40,
    noticed_after_seconds=5.8,
    cause=Cause(slug="dataloader-deadlock", confidence="proven", title="the loader waits forever"),
)
WORKS = Activity(verdict=TreeVerdict(verdict=Verdict.MOVING, cpu_share=1.0))
STATE = fold(
    [
        ev.AttemptStarted(number=2, fallback="load data in the main process"),
        ev.TrainingStarted(first_step=0, steps=60),
        *(ev.StepDone(step=at, loss=0.25, time=at * 3.75) for at in range(40)),
        ev.Progressed(phase="step", step=40, steps=60, resident_bytes=2_000_000_000, activity=WORKS),
        ev.Quiet(seconds=9.0, phase="step", step=40, activity=WORKS),
    ],
    Records(
        request=CommandRequest(command=("python", "train.py"), cwd="."),
        metrics=ModelMetrics(splits={"validation": SplitMetrics(scores={"accuracy": 0.9})}),
    ),
)


@pytest.fixture
def view(tmp_path: Path):
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    shown = RunView(Screen(prefix="holdfast: "), shows_output=True)
    shown(ev.RunOpened(folder=str(tmp_path)))
    shown(ev.AttemptStarted(number=1))
    yield shown
    shown.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("columns", [39, 80])
def test_a_state_fits_the_terminal_and_says_all_that_matters(columns):
    lines = run_lines(RunState(**_fields(STATE) | {"attempts": (HUNG, *STATE.attempts)}), columns)
    assert max(map(len, lines)) <= columns
    text = " ".join(lines)
    for part in (
        "python train.py",
        "step 40/60",
        "1 min 15 s left",
        "loss 0.25",
        "now: is computing",
        "[x]  attempt 1",
    ):
        assert part in text


def test_a_low_terminal_gets_no_more_lines_than_it_has():
    assert len(run_lines(STATE, 80, rows=6)) <= 6


def test_losses_become_a_row_of_bars():
    assert spark_line([3, 2, 1], 10) == "█▅▁"
    assert len(spark_line(range(1000), 20)) <= 20
    assert spark_line([float("nan"), 1.0], 10) == ""


def test_our_lines_start_on_a_line_of_their_own(view, tmp_path, capfdbinary):
    (attempt_folder(tmp_path, 1) / OUTPUT).write_bytes(b"half a line")
    view(ev.ProcessesLeft(processes=[LeftProcess(pid=7, name="python")]))
    assert b"half a line\nholdfast: " in capfdbinary.readouterr().out


def test_attempt_events_become_its_state(view, tmp_path):
    log = EventLog(attempt_folder(tmp_path, 1) / EVENTS)
    log.write(ev.TrainingStarted(first_step=0, steps=9))
    log.write(ev.StepDone(step=0, loss=0.5))
    view(ev.Ticked())
    assert (view.state.step, view.state.steps, view.state.loss) == (1, 9, 0.5)


def test_a_full_disk_is_reported_once_per_checkpoint(view, tmp_path, capsys):
    log = EventLog(attempt_folder(tmp_path, 1) / EVENTS)
    full = ev.CheckpointFailed(step=12, reason="No space left on device", is_full=True)
    for event in (ev.CheckpointSaved(step=6), full, full):
        log.write(event)
    view(ev.DiskFull())
    assert capsys.readouterr().out.count(full_disk_text(6)) == 1
    for event in (ev.CheckpointSaved(step=20), full):
        log.write(event)
    view(ev.Ticked())
    assert capsys.readouterr().out.count(full_disk_text(20)) == 1


def test_quick_work_is_not_shown(clock, capsys):
    shown = Screen()
    for _ in range(3):
        shown.working("reading", 1, 2)
    assert capsys.readouterr().out == ""


def test_pipe_gets_occasional_plain_lines(clock, capsys):
    shown = Screen()
    for _ in range(40):
        shown.working("loading torch")
        clock[0] += 1.0
    assert capsys.readouterr().out.splitlines() == ["loading torch, 15 s", "loading torch, 30 s"]


def test_quiet_is_quiet(clock, capsys):
    shown = Screen(quiet=True)
    for _ in range(40):
        shown.working("loading torch")
        clock[0] += 1.0
    assert capsys.readouterr().out == ""


def _fields(state: RunState) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__struct_fields__}
