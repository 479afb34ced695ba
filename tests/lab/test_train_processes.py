"""`holdfast train --processes 2` from the shell: one process's model, whoever of its processes is ended, and how."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.event_log import read_events
from holdfast.core.events import StepDone, TrainingStopped
from holdfast.core.observations import KilledExternally
from holdfast.core.records import Outcome, Proof, ResumeCheck, RunPlan, read_record
from holdfast.core.runfolder import CHILD, EVENTS, attempt_folder, attempt_folders
from holdfast.pipeline.forecast import cores_used, cost_of
from holdfast.runs.state import read_state
from holdfast.supervisor.child_exits import read_ranks
from tests.lab.trained import Process, finish, make_world, start, steps_done, train, wait_until, weights

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
pytestmark = [
    pytest.mark.lab,
    pytest.mark.full,
    pytest.mark.skipif(CORES < 2, reason="each process wants a core of its own"),
]
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def unbroken(world) -> Path:
    """A run in two processes that nothing happens to."""
    run = world / "unbroken"
    finish(train_two(world, run))
    plan = read_record(run, RunPlan)
    assert (plan.processes, plan.settings.threads) == (2, 1)
    return run


def train_two(world: Path, run: Path, *more: str) -> Process:
    return train(world, run, "--prove", "never", "--processes", "2", *more)


def losses(run: Path) -> dict[int, float]:
    """The loss of each step, as it was computed last."""
    events = [event for attempt in attempt_folders(run) for event in read_events(attempt / EVENTS)]
    return {event.step: event.loss or 0.0 for event in events if isinstance(event, StepDone)}


def require_none_left(run: Path) -> None:
    """Nothing that works for the run may be there a while later."""
    deadline = time.monotonic() + 60
    while found := [pid for pid in psutil.pids() if f"{run}/attempts" in _command_line(pid)]:
        assert time.monotonic() < deadline, f"left behind: {found}"
        time.sleep(0.1)


def _command_line(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return " ".join(psutil.Process(pid).cmdline())
    return ""


def rank_pid(run: Path, rank: int) -> int:
    return next(pid for pid, found in read_ranks(attempt_folder(run, 1)).items() if found == rank)


def test_no_more_cores_were_used_than_there_are(unbroken):
    events = list(read_events(attempt_folder(unbroken, 1) / EVENTS))
    assert 0 < (cores_used(cost_of(events).cpu) or 0) <= CORES + 0.1  # both clocks are rounded


def test_two_processes_learn_what_one_does(world, unbroken, tmp_path):
    alone = tmp_path / "alone"
    finish(train(world, alone, "--prove", "never"))
    one, two = losses(alone), losses(unbroken)
    assert one.keys() == two.keys()
    assert len(one) == 93
    assert all(two[step] == pytest.approx(one[step], rel=ROUNDING) for step in one)
    assert read_artifact(alone / "metrics.json")["test"]["accuracy"] == pytest.approx(
        read_artifact(unbroken / "metrics.json")["test"]["accuracy"]
    )
    assert read_state(unbroken).processes == 2


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "launcher"])
def test_killed_process_is_named_and_model_is_identical(world, unbroken, tmp_path, victim):
    run = tmp_path / "run"
    process = train_two(world, run)
    wait_until(lambda: steps_done(run) >= 40, process)
    launcher = int(read_artifact(attempt_folder(run, 1) / CHILD)["pid"])
    pid = launcher if victim == "launcher" else rank_pid(run, int(victim[-1]))
    os.kill(pid, signal.SIGKILL)
    finish(process)
    proof = read_record(attempt_folder(run, 1), Outcome).cause.proof
    assert isinstance(proof, KilledExternally)
    assert (proof.signal, proof.pid) == ("SIGKILL", pid)
    assert (proof.victim, proof.rank) == (("launcher", None) if victim == "launcher" else ("rank", int(victim[-1])))
    assert weights(run) == weights(unbroken)
    require_none_left(run)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_resume_after_killed_supervisor_takes_any_number(world, unbroken, tmp_path, processes):
    run = tmp_path / "run"
    process = train_two(world, run)
    wait_until(lambda: steps_done(run) >= 30, process)
    process.kill()
    process.communicate(timeout=60)
    require_none_left(run)
    finish(start(world, "resume", str(run), "--processes", processes))
    one, two = losses(run), losses(unbroken)
    assert all(one[step] == pytest.approx(two[step], rel=ROUNDING) for step in two)
    assert (weights(run) == weights(unbroken)) == (processes == "2")
    assert json.loads((run / "request.json").read_text())["processes"] == int(processes)


@pytest.mark.parametrize("how", ["ctrl-c", "stop"])
def test_stop_request_makes_ranks_save_together(world, unbroken, tmp_path, how):
    run = tmp_path / "run"
    process = train_two(world, run)
    wait_until(lambda: steps_done(run) >= 20, process)
    if how == "stop":
        finish(start(world, "stop", str(run)))
    else:
        process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == (143 if how == "stop" else 130), said.decode()
    require_none_left(run)
    events = read_events(attempt_folder(run, 1) / EVENTS)
    assert [event.step for event in events if isinstance(event, TrainingStopped)] == [steps_done(run)]
    finish(start(world, "resume", str(run)))
    assert weights(run) == weights(unbroken)


def test_refused_setting_is_not_kept(world, tmp_path):
    run = tmp_path / "run"
    process = train_two(world, run)
    wait_until(lambda: steps_done(run) >= 10, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    refused = start(world, "resume", str(run), "--processes", str(CORES + 1))
    said, _ = refused.communicate(timeout=300)
    assert refused.returncode == 3, said
    assert f"--processes {CORES}".encode() in said  # as many as there are
    assert json.loads((run / "request.json").read_text())["processes"] == 2


def test_the_proof_goes_through_as_many_processes(world, tmp_path):
    run, unproven = tmp_path / "run", tmp_path / "unproven"
    finish(train(world, run, "--prove", "always", "--epochs", "20", "--processes", "2"))
    finish(train_two(world, unproven, "--epochs", "20"))
    assert weights(run) == weights(unproven)
    (parity,) = read_record(run, Proof).parity
    assert (parity.against, parity.agrees) == ("one process", True)
    assert abs(parity.off) < ROUNDING
    assert read_record(run, ResumeCheck).is_exact
