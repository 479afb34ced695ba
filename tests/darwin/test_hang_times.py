"""How long until a process that stands still is given up on macOS: real processes, the clock turned by hand."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.core.heartbeat import BeatWriter
from holdfast.core.observations import APPLE_GPU, Verdict, WaitTarget
from holdfast.core.runfolder import BEATS, STACKS
from holdfast.supervisor import mac_waits
from holdfast.supervisor.attempt_watch import AttemptSample, AttemptWatch
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child_exits import ChildExits
from holdfast.supervisor.clocks import Clocks
from holdfast.supervisor.processes import sample_tree
from tests.darwin.pretended import thread_lines

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pretends a macOS on Linux")

NOTICED_SECONDS = 20.0
ARMED = """
import faulthandler, os, signal, subprocess, sys, threading, time
faulthandler.register(signal.SIGUSR1, file=open(f"{sys.argv[1]}/python-{os.getpid()}.txt", "w"), all_threads=True)
"""
OWN_LOCK = "lock = threading.Lock()\nlock.acquire()\nprint('x', flush=True)\nlock.acquire()\n"
WRAPPERS = {
    "python": [],
    "bash": ["bash", "-c", '"$@"; true', "sh"],
    "waits for its child": [sys.executable, "-S", "-c", "import subprocess, sys; subprocess.call(sys.argv[1:])"],
    "event loop": [
        sys.executable, "-c",
        "import asyncio, sys\n"
        "async def go(): await (await asyncio.create_subprocess_exec(*sys.argv[1:])).wait()\n"
        "asyncio.run(go())",
    ],
}  # fmt: skip
PHASES = ("start", "import", "load", "first step", "step", "evaluate", "save", "no beats")


@dataclass
class Standing:
    """A program that stands still, watched with a clock that is turned by hand."""

    root: subprocess.Popen
    attempt: Path
    now: float = 1000.0
    samples: list[AttemptSample] = field(default_factory=list)

    def watch_for(self, seconds: float, turn: float = 1.0) -> AttemptSample:
        watch = AttemptWatch(self.attempt, self.root.pid, Budgets(), lambda: Clocks(self.now, self.now + 5e6))
        begun = self.now
        while self.now - begun < seconds:
            self.samples.append(watch.sample())
            if self.samples[-1].is_hung:
                break
            while watch._waits.is_looking:
                time.sleep(0.005)
            self.now += turn
        watch.close()
        return self.samples[-1]

    @property
    def verdicts(self) -> set[Verdict]:
        return {sample.verdict.verdict for sample in self.samples}


@contextlib.contextmanager
def standing(folder: Path, code: str, wrapper: str = "python", phase: str = "step") -> Iterator[Standing]:
    stacks = folder / STACKS
    stacks.mkdir(parents=True)
    (folder / BEATS).mkdir()
    script = folder / "program.py"
    script.write_text(ARMED + code)
    command = [*WRAPPERS[wrapper], sys.executable, "-S", str(script), str(stacks)]
    root = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        root.stdout.readline()
        time.sleep(0.1)  # it goes to sleep after its line
        trainer = next(
            process.pid
            for process in sample_tree(root.pid).processes
            if (stacks / f"python-{process.pid}.txt").exists()
        )
        if phase != "no beats":
            BeatWriter(folder / BEATS / str(trainer)).enter(phase, 5 if phase == "step" else 0, 100)
        yield Standing(root, folder)
    finally:
        os.killpg(root.pid, 9)
        root.wait()
        root.stdout.close()


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("phase", PHASES)
def test_deadlock_is_noticed_in_every_phase_under_every_wrapper(tmp_path, mac, phase, wrapper):
    with standing(tmp_path, OWN_LOCK, wrapper, phase) as program:
        sample = program.watch_for(60)
    assert sample.is_hung, program.verdicts
    assert sample.verdict.verdict is Verdict.DEADLOCK
    assert sample.silent_seconds <= NOTICED_SECONDS


HEALTHY = {
    "waits for a limited time": ("print('x', flush=True)\nthreading.Event().wait(600)\n", Verdict.TIMED),
    "sleeps": ("print('x', flush=True)\ntime.sleep(600)\n", Verdict.SLEEPING),
    "waits for a child that sleeps": ("print('x', flush=True)\nsubprocess.call(['sleep', '600'])\n", Verdict.SLEEPING),
    "joins a thread that sleeps": (
        "one = threading.Thread(target=time.sleep, args=(600,), daemon=True)\none.start()\n"
        "print('x', flush=True)\none.join()\n",
        Verdict.SLEEPING,
    ),
    "waits for an answer": (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "asked = socket.create_connection(server.getsockname())\nprint('x', flush=True)\nasked.recv(1)\n",
        Verdict.WAIT_NET,
    ),
    "has a timer besides its lock": (
        "threading.Thread(target=lambda: threading.Event().wait(600), daemon=True).start()\n" + OWN_LOCK,
        Verdict.TIMED,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_wait_that_may_end_by_itself_is_not_a_deadlock(tmp_path, mac, name):
    code, verdict = HEALTHY[name]
    with standing(tmp_path, code) as program:
        sample = program.watch_for(28)  # less than the limit of a step
    assert not sample.is_hung
    assert verdict in program.verdicts


def test_waits_outside_are_named_and_given_time(tmp_path, mac):
    with standing(tmp_path, HEALTHY["waits for a child that sleeps"][0]) as program:
        sample = program.watch_for(300, turn=5.0)
    assert not sample.is_hung
    assert (sample.activity.outside.kind, sample.activity.outside.name) == ("child", "sleep")


def test_stopped_process_is_noticed(tmp_path, mac):
    with standing(tmp_path, HEALTHY["sleeps"][0]) as program:
        os.kill(program.root.pid, signal.SIGSTOP)
        sample = program.watch_for(30)
    assert sample.verdict.verdict is Verdict.STOPPED
    assert sample.silent_seconds <= 10.0


def test_without_sample_the_python_stack_tells(tmp_path, mac, monkeypatch):
    monkeypatch.setattr(mac_waits, "run_sample", lambda pid, seconds=10.0: "")
    with standing(tmp_path, OWN_LOCK) as program:
        sample = program.watch_for(60)
    assert sample.verdict.main.wait.target is WaitTarget.LOCK
    assert sample.is_hung


def test_wait_without_any_stack_has_the_limit_of_its_phase(tmp_path, mac, monkeypatch):
    monkeypatch.setattr(mac_waits, "run_sample", lambda pid, seconds=10.0: "")
    with standing(tmp_path, OWN_LOCK) as program:
        next((tmp_path / STACKS).glob("python-*.txt")).unlink()
        sample = program.watch_for(120)
    assert sample.is_hung
    assert sample.verdict.verdict is Verdict.TIMED
    assert 30 < sample.silent_seconds < 100


def test_wait_for_the_gpu_needs_a_frame_of_it(tmp_path, mac, monkeypatch):
    below = (
        "at::mps::MPSStream::synchronize(at::mps::SyncType)",
        "-[_MTLCommandBuffer waitUntilCompleted]",
        "_pthread_cond_wait",
        "__psynch_cvwait",
    )
    monkeypatch.setattr(
        mac_waits,
        "run_sample",
        lambda pid, seconds=10.0: "\n".join(["Call graph:", *thread_lines(pid, below, is_main=True)]),
    )
    with standing(tmp_path, OWN_LOCK) as program:
        sample = program.watch_for(28)
    assert sample.verdict.main.wait.name == APPLE_GPU
    assert not sample.is_hung


def test_ends_of_other_processes_are_seen(mac):
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    exits = ChildExits()
    try:
        time.sleep(0.3)
        tree = sample_tree(child.pid)
        exits.watch(tree.processes)
        os.kill(tree.processes[1].pid, signal.SIGKILL)
        child.wait(10)
        time.sleep(0.2)
        found = exits.collect(5.0)
    finally:
        exits.close()
        os.killpg(child.pid, signal.SIGKILL) if child.poll() is None else None
    assert exits.can_see
    assert tree.processes[0].pid in {one.pid for one in found}
