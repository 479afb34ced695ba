"""The watch itself, on the process that runs the tests: positions, pace, and clocks that are made up."""

import os
import socket
import sys

import pytest

from holdfast.core.heartbeat import BeatWriter
from holdfast.core.observations import ExitStatus, Verdict
from holdfast.core.runfolder import BEAT, BEATS
from holdfast.supervisor.attempt_watch import AttemptWatch, BeatPages
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child_exits import ChildExit, ChildExits
from holdfast.supervisor.clocks import Clocks
from holdfast.supervisor.processes import TreeSample, sample_tree, this_system
from holdfast.supervisor.sockets import LISTENING, read_sockets
from tests.unit.supervisor.samples import process

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class FakeClocks:
    """Clocks that move when they are told."""

    def __init__(self) -> None:
        self.monotonic, self.boot = 1000.0, 1000.0

    def __call__(self) -> Clocks:
        return Clocks(self.monotonic, self.boot)

    def move(self, seconds: float, asleep_seconds: float = 0.0) -> None:
        self.monotonic += seconds
        self.boot += seconds + asleep_seconds


def test_a_machine_that_slept_is_not_silent(tmp_path):
    clocks = FakeClocks()
    watch = AttemptWatch(tmp_path, os.getpid(), Budgets(step_floor_seconds=5.0), clocks)
    BeatWriter(tmp_path / BEAT).enter("step", 3, 10)
    watch.sample()
    for _ in range(4):
        clocks.move(1.0)
        sample = watch.sample()
    assert sample.silent_seconds == 4.0
    clocks.move(1.0, asleep_seconds=8 * 3600.0)
    sample = watch.sample()
    assert sample.silent_seconds == 0.0
    assert not sample.is_hung
    watch.close()


def test_heartbeat_progress_updates_the_budget(tmp_path):
    clocks = FakeClocks()
    watch = AttemptWatch(tmp_path, os.getpid(), Budgets(), clocks)
    beat = BeatWriter(tmp_path / BEAT)
    for step in range(4):
        beat.enter("step", step, 10)
        sample = watch.sample()
        assert (sample.phase, sample.step, sample.steps, sample.silent_seconds) == ("step", step, 10, 0.0)
        clocks.move(12.0)
    assert watch.budgets.step_seconds == 72.0
    watch.close()


def test_the_pace_of_samples_is_within_its_limits(tmp_path):
    watch = AttemptWatch(tmp_path, os.getpid(), Budgets(), FakeClocks())
    watch.sample()
    assert 0.5 <= watch.next_sample_seconds <= 5.0
    watch.close()


def test_processes_with_steps_are_training(tmp_path):
    (tmp_path / BEATS).mkdir()
    BeatWriter(tmp_path / BEATS / "10").enter("import")  # a launcher
    for pid, step in ((20, 7), (30, 8)):
        BeatWriter(tmp_path / BEATS / str(pid)).enter("step", step, 100)
    BeatWriter(tmp_path / BEATS / "99").enter("step", 50, 100)  # gone
    tree = TreeSample(at_seconds=0.0, processes=(process(10), process(20), process(30), process(40)))
    position = BeatPages(tmp_path, 10).read(tree)
    assert position.training_pids == (20, 30)
    assert (position.phase, position.step, position.steps) == ("step", 8, 100)


def test_after_the_last_step_no_further_one_is_due(tmp_path):
    BeatWriter(tmp_path / BEAT).enter("step", 10, 10)
    position = BeatPages(tmp_path, 10).read(TreeSample(at_seconds=0.0, processes=(process(10),)))
    assert position.phase == "step"
    assert position.budget_phase == "end"


@only_linux
def test_a_sample_shows_this_process_as_it_is():
    mine = sample_tree(os.getpid()).processes[0]
    assert mine.pid == os.getpid()
    assert mine.threads[0].tid == os.getpid()
    assert mine.threads[0].run_ns > 0
    assert mine.resident_bytes > 10_000_000
    assert mine.tracer_pid == 0


def test_essentials_are_seen_without_proc(monkeypatch):
    import psutil  # before the platform changes

    assert psutil.Process
    monkeypatch.setattr(sys, "platform", "darwin")
    mine = sample_tree(os.getpid()).processes[0]
    assert mine.pid == os.getpid()
    assert mine.cpu_seconds > 0
    assert mine.resident_bytes > 10_000_000
    assert sample_tree(2**22 + 1).processes == ()


def test_a_process_that_is_gone_leaves_an_empty_sample():
    assert sample_tree(2**22 + 1).processes == ()


@only_linux
def test_sockets_are_known_by_their_ends():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        known = read_sockets()
        port = server.getsockname()[1]
        assert known[os.fstat(server.fileno()).st_ino].state == LISTENING
        found = known[os.fstat(client.fileno()).st_ino]
        assert found.remote == f"127.0.0.1:{port}"
        assert found.silent_seconds is None or found.silent_seconds < 60


def test_an_exit_has_a_status_when_somebody_saw_it():
    assert ChildExit(pid=1, name="python", at_seconds=0.0, signal=11).status == ExitStatus(signal="SIGSEGV")
    assert ChildExit(pid=1, name="python", at_seconds=0.0, code=3).status == ExitStatus(code=3)
    assert ChildExit(pid=1, name="python", at_seconds=0.0).status is None
    assert not ChildExit(pid=1, name="python", at_seconds=0.0, code=0).is_failure
    assert not ChildExit(pid=1, name="python", at_seconds=0.0).is_failure


def test_no_process_has_ended_while_all_live():
    exits = ChildExits()
    exits.watch(sample_tree(os.getpid()).processes)
    assert exits.collect(0.0) == []
    exits.close()


@only_linux
def test_quiet_sample_of_this_process_is_not_a_hang(tmp_path):
    clocks = FakeClocks()
    watch = AttemptWatch(tmp_path, os.getpid(), Budgets(), clocks)
    samples = []
    for _ in range(8):
        samples.append(watch.sample())
        clocks.move(1.0)
    assert not any(sample.is_hung for sample in samples)
    assert samples[-1].verdict.verdict in (Verdict.MOVING, Verdict.STARVED, Verdict.TIMED)
    watch.close()


def tree(*pids: int) -> TreeSample:
    return TreeSample(at_seconds=0.0, processes=tuple(process(pid) for pid in pids))


@pytest.mark.parametrize(("root", "phase"), [("torchrun train.py", "step"), ("bash stages.sh", "start")])
def test_a_launcher_whose_ranks_are_gone_is_where_they_were(tmp_path, monkeypatch, root, phase):
    monkeypatch.setattr(this_system(), "command_line", lambda pid: root if pid == 30 else "python train.py")
    monkeypatch.setattr(this_system(), "variable", lambda pid, name: None)
    (tmp_path / BEATS).mkdir()
    for pid in (31, 32):
        BeatWriter(tmp_path / BEATS / str(pid)).enter("step", 7, 9)
    watched = BeatPages(tmp_path, 30)
    before = watched.read(tree(30, 31, 32))
    assert (before.phase, before.step, before.steps, before.training_pids) == ("step", 7, 9, (31, 32))
    after = watched.read(tree(30))
    assert after.phase == phase
    assert after.budget_phase == "unknown"  # what it may do now is not for the limits of a step to say
