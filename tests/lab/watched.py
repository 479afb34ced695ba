"""Starts scripts and watches them with the product's own watch, several at a time, until each hangs or ends."""

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.core.observations import Verdict
from holdfast.runs.observation_wording import verdict_text
from holdfast.supervisor.attempt_watch import AttemptSample, AttemptWatch
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Child, Launch, start_child
from holdfast.supervisor.ending import end_tree

FAULTS = Path(__file__).parent / "faults"


@dataclass
class Watched:
    """One script under watch, and what was seen of it."""

    name: str
    attempt: Path
    child: Child
    watch: AttemptWatch
    samples: list[AttemptSample] = field(default_factory=list)
    next_sample: float = 0.0

    @property
    def last(self) -> AttemptSample:
        return self.samples[-1]

    @property
    def verdicts(self) -> set[Verdict]:
        return {sample.verdict.verdict for sample in self.samples}

    @property
    def text(self) -> str:
        """What it was seen doing, for the message of a test that fails."""
        return "\n".join([*sorted({verdict_text(sample.verdict) for sample in self.samples}), str(self.last)])

    @property
    def log(self) -> str:
        return (self.attempt / "output.log").read_text(errors="replace")


def start(
    attempt: Path, name: str, *arguments: object, budgets: Budgets | None = None, command: tuple[str, ...] = ()
) -> Watched:
    """Start a script of the lab under watch."""
    paths = os.pathsep.join((str(Path(holdfast.__file__).parent / "preload"), *sys.path[:1]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}
    line = (*(command or (sys.executable,)), str(FAULTS / f"{name}.py"), *map(str, arguments))
    attempt.mkdir(parents=True)
    child = start_child(Launch(line, attempt, environment, attempt))
    return Watched(name, attempt, child, AttemptWatch(attempt, child.pid, budgets or Budgets()))


def watch_all(scripts: list[Watched], seconds: float) -> dict[str, Watched]:
    """Watch until every script hangs or has ended, then end what is left."""
    end = time.monotonic() + seconds
    waiting = list(scripts)
    try:
        while waiting and time.monotonic() < end:
            for script in list(waiting):
                _turn(script)
                if script.samples and (script.last.is_hung or script.child.poll() is not None):
                    waiting.remove(script)
            time.sleep(0.05)
    finally:
        for script in scripts:
            script.watch.close()
            end_tree(script.attempt, script.child, 0)
    return {script.name: script for script in scripts}


def _turn(script: Watched) -> None:
    if time.monotonic() >= script.next_sample and script.child.poll() is None:
        script.samples.append(script.watch.sample())
        script.next_sample = time.monotonic() + script.watch.next_sample_seconds
