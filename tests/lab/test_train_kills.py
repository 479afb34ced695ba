"""`holdfast train` on tiny models: it finishes, and after a kill of child, parent or both it is the same model."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.events import read_events
from holdfast.core.runfolder import CHILD, EVENTS, attempt_folder
from holdfast.supervisor.outcome import newest_beat
from tests.tiny import tiny_bert

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A folder with a tiny model, data, and caches of its own."""
    folder = tmp_path_factory.mktemp("world")
    tiny_bert(folder / "model")
    draws = random.Random(1)
    with (folder / "texts.csv").open("w") as file:
        file.write("text,label\n")
        for _ in range(600):
            words = [draws.randrange(1, 100) for _ in range(draws.randrange(4, 20))]
            file.write(" ".join(f"w{word}" for word in words) + f",kind {words[0] % 3}\n")
    return folder


def start(world: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "XDG_CACHE_HOME": str(world / "cache"), "XDG_STATE_HOME": str(world / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=world,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def train(world: Path, run: Path, *more: str) -> "subprocess.Popen[bytes]":
    given = ["train", "texts.csv", "--model", "model", "--out", str(run), "--threads", "1", "--epochs", "3"]
    return start(world, *given, "--batch-size", "16", "--lr", "1e-3", "--save-seconds", "0", *more)


def finish(process: "subprocess.Popen[bytes]") -> str:
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said.decode()
    return " ".join(said.decode().split())  # lines are wrapped


def weights(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def wait_until(is_true, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 400
    while not is_true():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


def has_event(path: Path, name: str, **wanted: object) -> bool:
    return any(
        event["event"] == name and all(event.get(key) == value for key, value in wanted.items())
        for event in read_events(path)
    )


def steps_done(run: Path, number: int = 1) -> int:
    events = read_events(attempt_folder(run, number) / EVENTS)
    return max((int(str(event["step"])) + 1 for event in events if event["event"] == "step"), default=0)


@pytest.fixture(scope="module")
def unbroken(world) -> Path:
    run = world / "unbroken"
    said = finish(train(world, run, "--prove", "never"))
    assert "the model is in" in said
    return run


def test_one_file_in_one_finished_model_out(unbroken):
    result = json.loads((unbroken / "result.json").read_text())
    assert result["state"] == "finished"
    assert result["metrics"]["test"]["accuracy"] > 0.5
    names = ("request.json", "machine.json", "dataset.json", "plan.json", "doctor.json", "prepared/manifest.json")
    assert all((unbroken / name).is_file() for name in names)
    plan = json.loads((unbroken / "plan.json").read_text())
    assert all(choice["because"] for choice in plan["choices"].values())


def test_a_killed_child_is_named_and_the_same_model_comes_out(world, unbroken, tmp_path):
    run = tmp_path / "run"
    process = train(world, run, "--prove", "never")
    wait_until(lambda: steps_done(run) >= 40, process)
    os.kill(json.loads((attempt_folder(run, 1) / CHILD).read_text())["pid"], signal.SIGKILL)
    said = finish(process)
    assert "killed" in said.lower()
    assert weights(run) == weights(unbroken)


@pytest.mark.full
def test_a_killed_parent_takes_its_child_along_and_resume_gives_the_same_model(world, unbroken, tmp_path):
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
    "survey": lambda run: has_event(run / EVENTS, "phase", phase="survey"),
    "prepare": lambda run: has_event(run / EVENTS, "phase", phase="prepare"),
    "prove, longest": lambda run: (run / "proof" / "longest" / "attempts").exists(),
    "prove, first steps": lambda run: has_event(run / "proof" / "first-steps" / EVENTS, "step", step=5),
    "load": lambda run: (attempt_folder(run, 1) / CHILD).exists(),
    "train": lambda run: steps_done(run) >= 50,
    "evaluate": lambda run: is_in(run, "evaluate"),
    "save": lambda run: is_in(run, "save", after_step=10),
    "export": lambda run: (run / "metrics.json").exists(),
    "report": lambda run: (run / "result.json").exists(),
}
VICTIMS = ("child", "parent", "both")


def kill(process: "subprocess.Popen[bytes]", victim: str) -> None:
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
def test_ctrl_c_saves_and_resume_goes_on(world, unbroken, tmp_path):
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
    said = finish(train(world, run, "--prove", "always", "--epochs", "40"))
    assert "came again bit for bit" in said
    assert "longest examples" in said
    finish(train(world, unproven, "--prove", "never", "--epochs", "40"))
    assert weights(run) == weights(unproven)
    plan = json.loads((run / "plan.json").read_text())
    assert plan["proof"]["resume"]["is_exact"] is True
    assert len(plan["measured"]) >= 2
