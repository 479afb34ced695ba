"""`holdfast train` on tiny models: it finishes, and after a kill of child, parent or both it is the same model."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.events import StageStarted, StepDone
from holdfast.core.records import Proof, ResumeCheck, read_record
from holdfast.core.runfolder import CHILD, EVENTS, attempt_folder
from holdfast.core.setting_values import make_request
from holdfast.pipeline import prove
from holdfast.runs.new_train import start_train
from holdfast.runs.state import read_state
from holdfast.runs.train_run import plan_train
from holdfast.supervisor.outcome import newest_beat
from tests.lab.trained import Process, finish, has_event, make_world, start, steps_done, train, wait_until, weights

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def unbroken(world) -> Path:
    run = world / "unbroken"
    finish(train(world, run, "--prove", "never"))
    assert read_state(run).has_model
    return run


def test_one_file_in_one_finished_model_out(unbroken):
    result = json.loads((unbroken / "result.json").read_text())
    assert result["state"] == "finished"
    assert result["metrics"]["test"]["accuracy"] > 0.5
    names = ("request.json", "machine.json", "dataset.json", "plan.json", "doctor.json", "prepared/manifest.json")
    assert all((unbroken / name).is_file() for name in names)
    plan = json.loads((unbroken / "plan.json").read_text())
    assert all(choice["because"] for choice in plan["choices"].values())


def test_killed_child_is_named_and_model_is_identical(world, unbroken, tmp_path):
    run = tmp_path / "run"
    process = train(world, run, "--prove", "never")
    wait_until(lambda: steps_done(run) >= 40, process)
    os.kill(json.loads((attempt_folder(run, 1) / CHILD).read_text())["pid"], signal.SIGKILL)
    said = finish(process)
    assert "killed" in said.lower()
    assert weights(run) == weights(unbroken)


@pytest.mark.full
def test_killed_parent_ends_its_child_and_resume_matches(world, unbroken, tmp_path):
    run = tmp_path / "run"
    process = train(world, run, "--prove", "never")
    wait_until(lambda: steps_done(run) >= 30, process)
    child = json.loads((attempt_folder(run, 1) / CHILD).read_text())["pid"]
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.05)
    finish(start(world, "resume", str(run)))
    assert weights(run) == weights(unbroken)


def is_in(run: Path, phase: str, after_step: int = 0) -> bool:
    """Whether the newest beat is of this phase; the process is stopped for a moment, so that it stays there."""
    child = read_artifact(attempt_folder(run, 1) / CHILD).get("pid")
    if newest_beat(attempt_folder(run, 1))[0] != phase or not child or steps_done(run) <= after_step:
        return False
    os.kill(int(child), signal.SIGSTOP)
    time.sleep(0.005)
    if newest_beat(attempt_folder(run, 1))[0] == phase:
        return True
    os.kill(int(child), signal.SIGCONT)
    return False


PHASES = {
    "detect": lambda run: has_event(run / EVENTS, StageStarted, stage="detect"),
    "prepare": lambda run: has_event(run / EVENTS, StageStarted, stage="prepare"),
    "prove, longest": lambda run: (run / "proof" / "longest" / "attempts").exists(),
    "prove, first steps": lambda run: has_event(run / "proof" / "first-steps" / EVENTS, StepDone, step=5),
    "load": lambda run: (attempt_folder(run, 1) / CHILD).exists(),
    "train": lambda run: steps_done(run) >= 50,
    "evaluate": lambda run: is_in(run, "evaluate"),
    "save": lambda run: is_in(run, "save", after_step=10),
    "export": lambda run: (run / "metrics.json").exists(),
    "report": lambda run: (run / "result.json").exists(),
}
VICTIMS = ("child", "parent", "both")


def kill(process: Process, victim: str) -> None:
    """Kill without warning: all that works for the command, the command itself, or both."""
    below = psutil.Process(process.pid).children(recursive=True)
    for pid in ([process.pid] if victim != "child" else []) + (
        [one.pid for one in below] if victim != "parent" else []
    ):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for one in below if victim == "parent" else ():
        with contextlib.suppress(psutil.Error):  # it may have been stopped, to be caught in its phase
            one.resume()


@pytest.mark.full
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_any_phase_ends_in_the_same_model(world, unbroken, tmp_path, phase, victim):
    run = tmp_path / "run"
    process = train(world, run, "--prove", "always" if phase.startswith("prove") else "never")
    wait_until(lambda: PHASES[phase](run), process)
    kill(process, victim)
    if victim == "child":
        finish(process)  # by itself
    else:
        process.communicate(timeout=60)
        finish(start(world, "resume", str(run)))
    assert weights(run) == weights(unbroken)
    assert json.loads((run / "result.json").read_text())["state"] == "finished"
    assert (run / "report.html").is_file()


@pytest.mark.full
def test_ctrl_c_saves_and_resume_continues(world, unbroken, tmp_path):
    run = tmp_path / "run"
    process = train(world, run, "--prove", "never")
    wait_until(lambda: steps_done(run) >= 20, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said.decode()
    assert b"holdfast resume" in said
    finish(start(world, "resume", str(run)))
    assert weights(run) == weights(unbroken)


@pytest.mark.full
def test_the_proof_kills_resumes_and_changes_nothing(world, tmp_path):
    run, unproven = tmp_path / "run", tmp_path / "unproven"
    finish(train(world, run, "--prove", "always", "--epochs", "40"))
    finish(train(world, unproven, "--prove", "never", "--epochs", "40"))
    assert weights(run) == weights(unproven)
    proof = read_record(run, Proof)
    assert proof.longest.examples >= 2
    assert len(proof.candidates) >= 2
    assert read_record(run, ResumeCheck).is_exact


def test_a_proof_over_its_limit_is_cut_off(world, tmp_path, monkeypatch):
    """No plan can know how long a model takes here, so a proof that would never end is ended."""
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setattr(prove, "most_seconds", lambda seconds: 0.5)
    run = start_train(
        make_request(
            {
                "data": str(world / "texts.csv"),
                "model": str(world / "model"),
                "epochs": 1000,
                "out": str(tmp_path / "run"),
                "device": "cpu",
            }
        )
    )
    plan_train(run, on_event=lambda event: None)
    proof = read_record(run, Proof)
    assert (proof.state, proof.not_proven, proof.longest) == ("done", ("longest", "first_steps"), None)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(run) in " ".join(one.info["cmdline"] or ())]
