"""Measures useful time: the share of wall time spent on steps that count, in a training with repeated faults.

`holdfast train` with a real model; in every `--every` minutes one fault of a random kind at a random moment:

    kill        SIGKILL to the training process, as the kernel sends if memory runs out
    segfault    SIGSEGV
    abort       SIGABRT
    freeze      SIGSTOP
    deadlock    the main thread takes a lock twice in the middle of a step
    supervisor  SIGKILL to `holdfast` itself, whose child ends with it; `holdfast resume` follows at once, as any
                service manager would start it

A step counts once, the last time it was computed; work that was lost at a fault and repeated does not count. A step is
worth the time since the end of the step before it or, if something else happened in between (the start of an attempt,
an epoch, a save), the median of all other steps. The clock runs from the start of the command until the stop is
requested, so it includes survey, preparation and proof; "since the first step" excludes them. The proof ends with the
run's own first steps, which count. Nothing is evaluated.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.core.event_log import read_events
from holdfast.core.events import (
    AttemptStarted,
    CheckpointOverBudget,
    CheckpointSaved,
    Event,
    FailureNoticed,
    RunOpened,
    StepDone,
)
from holdfast.core.runfolder import EVENTS, attempt_folders
from holdfast.supervisor.members import read_root
from perf.figures import Figure, write_figures

STRIKE = Path(__file__).parents[1] / "tests" / "lab" / "faults" / "strike"
SIGNALS = {
    "kill": signal.SIGKILL,
    "segfault": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "freeze": signal.SIGSTOP,
    "deadlock": signal.SIGUSR2,  # see faults/strike
}
KINDS = (*SIGNALS, "supervisor")
GOAL_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to the run, and when."""

    kind: str
    at: float
    attempt: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as reported by an attempt."""

    number: int
    end: float
    seconds: float | None  # None if something else came before it
    attempt: str


@dataclass(slots=True)
class Story:
    """Everything known about the run after it has ended."""

    begun: float
    ended: float
    faults: list[Fault]
    steps: list[Step] = field(default_factory=list)
    supervised: list[Event] = field(default_factory=list)  # events of the supervisor

    @property
    def usual_seconds(self) -> float:
        """A step that nothing delayed."""
        return statistics.median(step.seconds for step in self.steps if step.seconds is not None)

    @property
    def counting(self) -> list[Step]:
        """Each step as it was computed last."""
        return list({step.number: step for step in self.steps}.values())

    def worth(self, steps: list[Step]) -> float:
        """The seconds of these steps alone."""
        usual = self.usual_seconds
        return sum(usual if step.seconds is None else step.seconds for step in steps)


def main() -> None:
    """Train, inject faults, print where the time went, add the shares to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="as for `holdfast train`")
    parser.add_argument("--data", type=Path, required=True, help="a file to train on")
    parser.add_argument(
        "--max-steps", type=int, default=2000, help="enough for --minutes; determines the size of the proof"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="the most")
    parser.add_argument("--every", type=float, default=3.0, help="minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults, separated by commas")
    parser.add_argument("--folder", type=Path, help="keep the run here")
    parser.add_argument("--no-ledger", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        story = Run(folder, options).go()
    figures = show(story, options)
    if not options.no_ledger:
        write_figures("useful_time", figures)


class Run:
    """The run under test."""

    def __init__(self, folder: Path, options: argparse.Namespace):
        self._folder, self._run, self._options = folder, folder / "run", options
        self._draws = random.Random(options.seed)
        own = {"PYTHONPATH": str(STRIKE), "STRIKE": "deadlock:call:0", "HF_HUB_OFFLINE": "1"}
        own |= {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
        self._environment = os.environ | own
        self._process: subprocess.Popen[bytes]

    def go(self) -> Story:
        """Train for this long, with faults, and ask it to stop."""
        faults, begun = [], time.time()
        steps = str(self._options.max_steps)
        asked = ("--model", self._options.model, "--max-steps", steps, "--eval-steps", steps)
        self._start("train", str(self._options.data.absolute()), "--out", str(self._run), *asked)
        for kind, minute in self._plan():
            if self._is_done_before(begun + 60 * minute):
                break
            faults.append(self._strike(kind))
            print(f"{faults[-1].at - begun:7.1f} s  {faults[-1].kind} in attempt {faults[-1].attempt}", flush=True)
        self._is_done_before(begun + 60 * self._options.minutes)
        story = Story(begun, time.time(), faults)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)
        read_story(self._run, story)
        return story

    def _plan(self) -> list[tuple[str, float]]:
        """One fault per interval; every kind occurs before any repeats."""
        kinds: list[str] = []
        count = int(self._options.minutes / self._options.every)
        while len(kinds) < count:
            kinds += self._draws.sample(self._options.kinds.split(","), len(self._options.kinds.split(",")))
        return [
            (kind, (at + self._draws.uniform(0.1, 0.9)) * self._options.every) for at, kind in enumerate(kinds[:count])
        ]

    def _strike(self, kind: str) -> Fault:
        attempts = attempt_folders(self._run)
        at, kind = time.time(), kind if attempts else "supervisor"  # nothing trains yet
        if kind == "supervisor":
            self._process.kill()
            self._process.wait()
            self._start("resume", str(self._run))
        else:
            root = read_root(attempts[-1])
            assert root, f"{attempts[-1]} has no process"
            os.kill(root.pid, SIGNALS[kind])
        return Fault(kind, at, attempts[-1].name if attempts else "none")

    def _start(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=(self._folder / "output.txt").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _is_done_before(self, moment: float) -> bool:
        while (left := moment - time.time()) > 0:
            if (code := self._process.poll()) is not None:
                if code:
                    raise RuntimeError(f"it ended: {(self._folder / 'output.txt').read_text()[-3000:]}")
                return True
            time.sleep(min(left, 0.5))
        return False


def read_story(run: Path, story: Story) -> None:
    """Read the steps of the proof and of every attempt, and the supervisor's events."""
    for attempt in (run / "proof" / "first-steps", *attempt_folders(run)):
        if not (attempt / EVENTS).exists():
            continue
        events = [event for event in read_events(attempt / EVENTS) if event.time <= story.ended]
        saved = {event.step for event in events if isinstance(event, CheckpointSaved)}
        before: Event | None = None
        for event in events:
            if isinstance(event, StepDone):
                is_plain = isinstance(before, StepDone) and event.step not in saved
                seconds = event.time - before.time if before and is_plain else None
                story.steps.append(Step(event.step, event.time, seconds, attempt.name))
            if not isinstance(event, (CheckpointSaved, CheckpointOverBudget)):
                before = event
    story.supervised = list(read_events(run / EVENTS))


def show(story: Story, options: argparse.Namespace) -> list[Figure]:
    """Print where the time went; return the figures for the ledger."""
    first = min(step.end for step in story.steps) - story.usual_seconds
    useful, wall = story.worth(story.counting), story.ended - story.begun
    print(f"\n{len(story.counting)} steps that count, {len(story.steps)} computed, {story.usual_seconds:.3f} s each")
    heads = (("noticed", 9), ("named", 8), ("steps again", 12), ("steps lost", 11), ("redone", 9))
    print(f"\n{'fault':<12}{'in attempt':>10}" + "".join(f"{head:>{width}}" for head, width in heads) + "  seconds")
    spent = {"notice it": 0.0, "name it and end what is left": 0.0, "start, load, resume": 0.0, "steps done again": 0.0}
    for fault in story.faults:
        parts, lost = _cost(story, fault)
        for name, seconds in zip(spent, parts, strict=True):
            spent[name] += seconds
        cells = "".join(f"{seconds:{width}.1f}" for seconds, width in zip(parts[:3], (9, 8, 12), strict=True))
        print(f"{fault.kind:<12}{fault.attempt:>10}{cells}{lost:>11}{parts[3]:>9.1f}")
    spent["before the first step"] = first - story.begun
    rest = wall - useful - sum(spent.values())
    print()
    for name, seconds in {**spent, "saves, slow first steps, the rest": rest}.items():
        print(f"{name:<34}{seconds:8.1f} s  {seconds / wall:6.2%}")
    shares = {"useful": useful / wall, "useful since the first step": useful / (story.ended - first)}
    for name, share in shares.items():
        print(f"{name:<34}{'':10}  {share:6.2%}   (goal {GOAL_SHARE:.0%})")
    count = len(story.faults)
    figures = [Figure(name, "% of the time", 100 * share, count) for name, share in shares.items()]
    figures += [
        Figure(f"time to {name}" if " it" in name else name, "seconds", value, count) for name, value in spent.items()
    ]
    return figures


def _cost(story: Story, fault: Fault) -> tuple[tuple[float, float, float, float], int]:
    """Seconds until detection, until diagnosis, and until steps continue, and the value of the repeated work."""
    later_events = [event for event in story.supervised if event.time >= fault.at]

    def first_of(*kinds: type[Event]) -> float:
        return next((event.time for event in later_events if isinstance(event, kinds)), story.ended)

    if fault.attempt == "none":  # all of it is before the first step
        return (first_of(Event) - fault.at, 0.0, 0.0, 0.0), 0
    noticed = first_of(FailureNoticed, AttemptStarted, RunOpened)
    begun = first_of(AttemptStarted)
    later = [step for step in story.steps if step.end > begun]
    first = min((step.end - story.usual_seconds for step in later), default=story.ended)
    reached = max((step.number for step in story.steps if step.end <= fault.at), default=-1)
    until = min((other.at for other in story.faults if other.at > fault.at), default=story.ended)
    again = [step for step in later if step.number <= reached and step.end <= until]
    return (noticed - fault.at, begun - noticed, max(first - begun, 0.0), story.worth(again)), len(again)


if __name__ == "__main__":
    main()
