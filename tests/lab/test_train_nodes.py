"""`holdfast train --nodes 2`: two machines on one computer train one model together, whoever of them fails."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.event_log import read_events
from holdfast.core.events import Resumed, StageStarted
from holdfast.core.records import Outcome, Proof, read_record
from holdfast.core.runfolder import EVENTS, NODES, NOTICE, OUTCOME, SETTINGS, attempt_folder, part_folder
from holdfast.models.store import keep
from holdfast.runs.cause_wording import cause_sentence
from holdfast.runs.lease import newest_lease
from holdfast.supervisor.child_exits import read_ranks
from tests.lab.trained import Process, finish, has_event, make_world, start, steps_done, train, wait_until, weights

pytestmark = [pytest.mark.lab, pytest.mark.full]
LEASE_SECONDS = "8"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def alone(world) -> str:
    """The weights of one machine with two processes, which nothing happens to."""
    run = world / "alone"
    finish(train(world, run, "--prove", "never", "--processes", "2"))
    return weights(run)


class Pair:
    """Machines a and b, which share a run's folder; a leads."""

    def __init__(self, world: Path, run: Path):
        self._world, self.run = world, run
        self.machines: dict[str, Process] = {}
        self.caches: dict[str, Path] = {}  # of machines that have one of their own

    def train(self, *more: str, on: tuple[str, ...] = ("a", "b")) -> None:
        """Start the same words on both."""
        for name in on:
            self._began(name, train(self._world, self.run, "--nodes", "2", *more, **self._own(name)))

    def resume(self, *more: str) -> None:
        """Go on, with the same words on both."""
        for name in ("a", "b"):
            self._began(name, start(self._world, "resume", str(self.run), *more, **self._own(name)))

    def rank_of_b(self, step: int) -> int:
        """Wait for a step; the process of b's rank."""
        wait_until(lambda: steps_done(self.run) >= step, self.machines["a"])
        return next(iter(read_ranks(part_folder(attempt_folder(self.run, 1), "b"))))

    def kill(self, name: str) -> None:
        """Let a machine's supervisor be gone."""
        self.machines[name].kill()
        self.machines[name].communicate(timeout=60)

    def _began(self, name: str, process: Process) -> None:
        before, is_led = newest_lease(self.run), any(one.poll() is None for one in self.machines.values())
        self.machines[name] = process
        if not is_led:
            wait_until(lambda: newest_lease(self.run) > before, process)

    def _own(self, name: str) -> dict[str, str]:
        here = {"HOLDFAST_NODE": name, "HOLDFAST_NODE_ADDRESS": "127.0.0.1"}
        if name in self.caches:
            here["XDG_CACHE_HOME"] = str(self.caches[name])
        return {**here, "HOLDFAST_NODE_LEASE_SECONDS": LEASE_SECONDS}


@pytest.fixture
def pair(world, tmp_path) -> Iterator[Pair]:
    machines = Pair(world, tmp_path / "run")
    yield machines
    for process in machines.machines.values():
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_two_machines_match_two_processes_bitwise(pair, alone):
    pair.train("--prove", "always")
    said = {name: finish(process) for name, process in pair.machines.items()}
    assert "2 machines" in said["a"]
    proof = read_record(pair.run, Proof)
    assert proof.longest.is_one_machine
    assert weights(pair.run) == alone
    result = json.loads((pair.run / "result.json").read_text())
    assert (result["state"], result["attempts"], result["metrics"]["test"]["accuracy"]) == ("finished", 1, 1.0)
    assert (pair.run / "report.html").is_file()
    ranks = [read_ranks(part) for part in (attempt_folder(pair.run, 1), part_folder(attempt_folder(pair.run, 1), "b"))]
    assert [list(found.values()) for found in ranks] == [[0], [1]]


def test_remotely_killed_rank_is_named_and_weights_identical(pair, alone):
    pair.train("--prove", "never")
    rank = pair.rank_of_b(40)
    os.kill(rank, signal.SIGKILL)
    for process in pair.machines.values():
        finish(process)
    cause = read_record(attempt_folder(pair.run, 1), Outcome).cause
    assert (cause.node, cause.exit.signal) == ("b", "SIGKILL")
    assert f"rank 1 on b (pid {rank})" in cause_sentence(cause)
    assert any(isinstance(event, Resumed) for event in read_events(attempt_folder(pair.run, 2) / EVENTS))
    assert weights(pair.run) == alone


def test_rank_stopped_on_other_machine_is_named(pair, alone):
    pair.train("--prove", "never")
    rank = pair.rank_of_b(40)
    os.kill(rank, signal.SIGSTOP)
    said = {name: finish(process) for name, process in pair.machines.items()}
    first = read_record(attempt_folder(pair.run, 1), Outcome)
    assert (first.outcome, first.diagnosis, first.cause.node) == ("hung", "process-stopped", "b"), said["a"]
    assert f"rank 1 on b (pid {rank})" in cause_sentence(first.cause)
    assert weights(pair.run) == alone


def test_ctrl_c_stops_both_and_one_machine_continues(pair, world, alone):
    pair.train("--prove", "never")
    pair.rank_of_b(30)
    pair.machines["b"].send_signal(signal.SIGINT)
    for process in pair.machines.values():
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 128 + signal.SIGINT, said.decode()
    assert read_artifact(attempt_folder(pair.run, 1) / OUTCOME)["outcome"] == "stopped"
    finish(start(world, "resume", str(pair.run), "--nodes", "1", "--processes", "2"))
    assert weights(pair.run) == alone


def test_lost_leader_is_replaced_and_run_continues(pair, alone):
    pair.train("--prove", "never")
    pair.rank_of_b(30)
    for name in pair.machines:
        pair.kill(name)
    pair.resume("--nodes", "2")
    for process in pair.machines.values():
        finish(process)
    assert weights(pair.run) == alone


def test_lost_leader_is_replaced_with_its_own_model(pair, world, tmp_path, alone, monkeypatch):
    def fetch(name: str, cache: str) -> None:
        """Have the model in a cache that no other machine sees."""
        pair.caches[name] = tmp_path / cache
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        keep("tiny", "the test", lambda draft: shutil.copytree(world / "model", draft, dirs_exist_ok=True))

    fetch("a", "cache-a")
    fetch("b", "cache-b")
    words = ("--prove", "never", "--model", "tiny")
    pair.train(*words)
    pair.rank_of_b(30)
    lease = newest_lease(pair.run)
    pair.kill("a")
    shutil.rmtree(tmp_path / "cache-a")
    wait_until(lambda: newest_lease(pair.run) > lease, pair.machines["b"])
    fetch("a", "cache-of-the-next-a")
    pair.train(*words, on=("a",))
    for process in pair.machines.values():
        finish(process)
    last = attempt_folder(pair.run, 2)
    models = [read_artifact(part / SETTINGS)["model"] for part in (last, part_folder(last, "a"))]
    assert [Path(model).is_relative_to(pair.caches[name]) for name, model in zip("ba", models, strict=True)] == [
        True
    ] * 2
    assert weights(pair.run) == alone


@pytest.mark.parametrize(("name", "number"), [("a", signal.SIGTERM), ("b", signal.SIGINT)])
def test_stop_during_the_leaders_proof_stops_both(pair, name, number):
    pair.train("--prove", "always")
    here = pair.run / NODES / "b" / NOTICE
    wait_until(lambda: here.exists() and has_event(pair.run / EVENTS, StageStarted, stage="prove"), pair.machines["a"])
    pair.machines[name].send_signal(number)
    for process in pair.machines.values():
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 128 + number, said.decode()
    assert not attempt_folder(pair.run, 1).exists()
