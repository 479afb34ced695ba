"""Loops over `holdfast.steps` under `holdfast run`: after a kill or a stop they end with the unbroken run's weights."""

import subprocess
import sys

import pytest

from holdfast.core.event_log import find_last
from holdfast.core.events import Resumed, TrainingStopped
from holdfast.core.runfolder import EVENTS
from tests.lab.supervised import SCRIPTS, finish, resume, start, supervise, wait_for_step, weights

pytestmark = pytest.mark.lab
LOOP = (sys.executable, SCRIPTS / "steps_loop.py")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> str:
    """The weights of the script without Holdfast's supervision."""
    folder = tmp_path_factory.mktemp("unbroken")
    subprocess.run([*map(str, LOOP), str(folder)], check=True, env={"PAUSE": "0"})
    assert [path.name for path in folder.iterdir()] == ["final.pt"]
    return weights(folder)


@pytest.mark.parametrize("fault", ["SIGKILL", pytest.param("SIGSEGV", marks=pytest.mark.full)])
def test_steps_loop_continues_exactly_after_a_kill(tmp_path, unbroken, lab_row, fault):
    done = supervise(tmp_path / "run", *LOOP, tmp_path / "out", FAULT=fault)
    assert done.exit_code == 0, done.output
    resumed = find_last(done.attempt(2) / EVENTS, Resumed)
    same = weights(tmp_path / "out") == unbroken
    lab_row(
        fault=fault,
        phase="step",
        task="holdfast.steps",
        noticed_after_seconds=done.outcomes[0].noticed_after_seconds,
        named=done.outcomes[0].diagnosis,
        finished=True,
        identical=same,
    )
    assert resumed
    assert 0 < resumed.step <= 60
    assert f"step {resumed.step}\n" in done.log(2)
    assert f"step {resumed.step - 1}\n" not in done.log(2)
    assert same
    assert not (done.run / "checkpoints").exists()


def test_stopped_steps_loop_saves_and_resumes_exactly(tmp_path, unbroken):
    run = tmp_path / "run"
    process = start(run, *LOOP, tmp_path / "out", PAUSE="0.1")
    wait_for_step(run, 21)
    subprocess.run([sys.executable, "-m", "holdfast", "stop", str(run)], check=True, capture_output=True)
    assert finish(process, run).exit_code == 143
    stopped = find_last(run / "attempts" / "01" / EVENTS, TrainingStopped)
    assert stopped
    assert stopped.saved
    done = resume(run)
    resumed = find_last(done.attempt(2) / EVENTS, Resumed)
    assert resumed
    assert resumed.step == stopped.step
    assert weights(tmp_path / "out") == unbroken
