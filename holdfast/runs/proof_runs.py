"""The processes of a proof: a whole run of one step, timed candidates, and the run's own first steps that are killed.

A small run is supervised like any other, so a plan that crashes takes a fallback while that is cheap. The killed first
steps leave their checkpoints: the first attempt continues from them and must repeat, bit for bit, the steps after the
last save. What takes longer than the proof may is ended.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import FallbacksFailed, HoldfastError, MachineError, RequestError
from holdfast.core.event_log import EventSink, EventTail, read_events
from holdfast.core.events import (
    AttemptEnded,
    CheckpointSaved,
    Evaluated,
    Event,
    PhaseChanged,
    Progressed,
    ProofPartFailed,
    StepDone,
    Working,
)
from holdfast.core.records import Changes, FirstSteps, Outcome, Result, read_record
from holdfast.core.runfolder import EVENTS, attempt_folders
from holdfast.core.settings import EngineSettings
from holdfast.pipeline.prove import SmallRun
from holdfast.runs.cause_wording import outcome_text
from holdfast.runs.engine_child import ENGINE, TRIAL, EngineChildren
from holdfast.runs.state import peak_bytes
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Launch
from holdfast.supervisor.ending import end_tree, send
from holdfast.supervisor.ladders import engine_ladder
from holdfast.supervisor.members import find_members, read_root

_MOST_ATTEMPTS = 6
_REPEATED_STEPS = 2
_LOOK_SECONDS = 0.05


class EngineProofRuns:
    """Starts the engine for the proof of one run, and shows how far it is."""

    def __init__(self, report: EventSink, children: EngineChildren, step_timeout_seconds: float | None):
        self._report, self._children, self._step_timeout_seconds = report, children, step_timeout_seconds

    def warm_up(self) -> None:
        """Prepare a process for the next child."""
        self._children.warm_up()

    def small(
        self, folder: Path, settings: EngineSettings, variables: Changes, words: str, seconds: float
    ) -> SmallRun | None:
        """A whole supervised run; another child always follows, so a spare is prepared meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        show = self._shown_as(words)

        def hear(event: Event) -> None:
            if isinstance(event, PhaseChanged) and event.phase == "load":
                self._children.warm_up()  # nothing is timed here
            show(event)

        def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
            return self._children.launch(attempt, settings, {**variables, **changes})

        spec = RunSpec(
            kind="proof",
            words=f"proof {folder.name}",
            make_launch=launch,
            ladder=engine_ladder(settings),
            max_attempts=_MOST_ATTEMPTS,
            step_timeout_seconds=self._step_timeout_seconds,
        )
        with _ended_after(seconds) as stop:
            result = supervise(folder, spec, hear, stop=stop)
        if result.state == "stopped":
            return None
        if result.state != "finished":
            raise _refused(folder, result)
        events = (event for file in sorted((folder / "attempts").glob(f"*/{EVENTS}")) for event in read_events(file))
        losses = [event.metrics.get("loss") for event in events if isinstance(event, Evaluated)]
        return SmallRun(losses[-1] if losses else None, dict(result.changes), peak_bytes(folder), result.seconds)

    def time_candidates(
        self, folder: Path, settings: EngineSettings, variables: Changes, words: str, seconds: float
    ) -> None:
        """Time the candidates of a folder, as many as there is time for."""
        self._attempt(folder, settings, variables, TRIAL, self._shown_as(words), seconds)

    def first_steps(
        self, folder: Path, settings: EngineSettings, variables: Changes, wanted: int, seconds: float
    ) -> FirstSteps:
        """Do a run's first steps and kill it; what it had done and saved."""
        show = self._shown_as("the run's own first steps", wanted)
        how = kill_after_steps(
            folder, wanted, lambda: self._attempt(folder, settings, variables, ENGINE, show, seconds)
        )
        if how in ("finished", "stopped"):
            return FirstSteps(state="finished" if how == "finished" else "cut")
        events = list(read_events(folder / EVENTS))
        steps = sum(isinstance(event, StepDone) for event in events)
        saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
        if not steps or not saved:
            return FirstSteps(state="failed")
        return FirstSteps(state="killed", steps=steps, saved_step=max(saved), peak_bytes=peak_bytes(folder))

    def _attempt(
        self, folder: Path, settings: EngineSettings, variables: Changes, module: str, show: EventSink, seconds: float
    ) -> str:
        """Run one child to its end and return how it ended; no process of it is left."""
        folder.mkdir(parents=True, exist_ok=True)
        launch = self._children.launch(folder, settings, variables, module)
        try:
            with _ended_after(seconds) as stop:
                outcome, _ = run_attempt(launch, Budgets(step_timeout_seconds=self._step_timeout_seconds), show, stop)
            return outcome.outcome
        finally:
            end_tree(folder, None, 0.0)

    def _shown_as(self, words: str, total: int = 0) -> EventSink:
        """Show how far a child of the proof is; its own events are not those of the run."""

        def hear(event: Event) -> None:
            if isinstance(event, Progressed):
                steps = total or event.steps
                what = f"{words}: {event.phase or 'start'}"
                self._report(Working(what=what, done=min(event.step, steps), total=steps or None))
            elif isinstance(event, AttemptEnded):
                self._report(ProofPartFailed(part=words, outcome=event.outcome, cause=event.cause))

        return hear


@contextmanager
def _ended_after(seconds: float) -> Iterator[StopRequest]:
    """A stop that is requested after this time, at once and without a save."""
    stop = StopRequest()

    def end() -> None:
        stop.ask()
        stop.ask()

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end) if seconds < math.inf else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield stop
    finally:
        if timer:
            timer.cancel()


def kill_after_steps(folder: Path, wanted: int, run_child: Callable[[], str]) -> str:
    """Run a child and kill it after this many steps; return how it ended."""
    ended = threading.Event()
    killer = threading.Thread(target=_kill_after, args=(folder, wanted, ended), daemon=True)
    killer.start()
    try:
        return run_child()
    finally:
        ended.set()


class StepCount:
    """How many steps are done and saved, from the events as they come."""

    def __init__(self, wanted: int):
        self._wanted, self._done, self._saved = wanted, 0, -1

    def take(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, StepDone):
            self._done = event.step + 1
        elif isinstance(event, CheckpointSaved):
            self._saved = event.step

    @property
    def is_enough(self) -> bool:
        """Whether enough steps are done and some of them are not saved; one is enough where each is saved."""
        unsaved = _REPEATED_STEPS if self._done < 2 * self._wanted else 1
        return self._saved >= 0 and self._done >= max(self._wanted, self._saved + unsaved)


def _kill_after(folder: Path, wanted: int, ended: threading.Event) -> None:
    tail, count = EventTail(folder / EVENTS), StepCount(wanted)
    while not ended.wait(_LOOK_SECONDS):
        for event in tail.read():
            count.take(event)
            if count.is_enough:  # right after a step: a save that follows it would leave nothing to repeat
                _kill(folder)
                return


def _kill(folder: Path) -> None:
    """Kill every process: the computing ones before the launcher, which would notice."""
    for member in reversed(find_members(folder, read_root(folder))):
        send(member.identity, signal.SIGKILL)


def _refused(run: Path, result: Result) -> HoldfastError:
    kinds = {RequestError.exit_code: RequestError, MachineError.exit_code: MachineError}
    kind = kinds.get(result.exit_code, FallbacksFailed)
    return kind(
        "training fails on the longest examples, before the first step completes",
        found=f"{_cause(run)}; the evidence is in {run}",
        try_next=result.remedies[:3],
        slug="" if result.slug == "unknown" else result.slug,
    )


def _cause(run: Path) -> str:
    outcomes = [read_record(attempt, Outcome) for attempt in reversed(attempt_folders(run))]
    return next((text for one in outcomes if one and (text := outcome_text(one))), "no cause was recorded")
