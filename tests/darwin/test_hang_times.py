"""How long until a process that stands still is given up on macOS: real processes, the clock turned by hand."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.core.heartbeat import BeatWriter
from holdfast.core.observations import Verdict
from holdfast.core.runfolder import BEATS, STACKS
from holdfast.supervisor.attempt_watch import AttemptSample, AttemptWatch
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.clocks import Clocks
from holdfast.supervisor.processes import sample_tree

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
