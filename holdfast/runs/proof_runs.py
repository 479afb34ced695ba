"""The processes of a proof: a whole run on few examples, and the run's own first steps that are killed.

A small run is supervised like any other, so a plan that crashes takes a fallback while that is cheap. The killed first
steps leave their checkpoints: the first attempt continues from them and must repeat, bit for bit, the steps after the
last save.
"""

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from holdfast.core.errors import FallbacksFailed, HoldfastError, MachineError, RequestError
from holdfast.core.event_log import EventSink, EventTail, read_events
from holdfast.core.events import CheckpointSaved, Evaluated, Event, StepDone
from holdfast.core.records import Changes, FirstSteps, Outcome, Result, read_record
from holdfast.core.runfolder import EVENTS, attempt_folders
from holdfast.core.settings import EngineSettings
from holdfast.planning.ladders import engine_ladder
from holdfast.runs.cause_wording import outcome_text
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.state import peak_bytes
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.supervisor.child import Launch
from holdfast.supervisor.ending import send
from holdfast.supervisor.members import find_members, read_root

MOST_STEPS, FEWEST_STEPS = 100, 8
_MOST_ATTEMPTS = 6
_REPEATED_STEPS = 2
_LOOK_SECONDS = 0.05


class SmallRun(NamedTuple):
    """The result of a small run."""

    loss: float | None
    changes: Changes  # it needed to finish
    peak_bytes: int | None
    seconds: float


def run_small(
    run: Path,
    prepared: Path,
    settings: EngineSettings,
    variables: Changes,
    children: EngineChildren,
    report: EventSink,
) -> SmallRun:
    """Train one step, evaluate, save and export; it learns next to nothing, so that its losses can be compared."""
    run.mkdir(parents=True, exist_ok=True)
    small = replace(settings, prepared=str(prepared), run=str(run), max_steps=1, lr=1e-8, keep="last")

    def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        return children.launch(attempt, small, {**variables, **changes})

    spec = RunSpec(
        kind="proof",
        words=f"proof {run.name}",
        make_launch=launch,
        ladder=engine_ladder(small),
        max_attempts=_MOST_ATTEMPTS,
    )
    result = supervise(run, spec, report)
    if result.state != "finished":
        raise _refused(run, result)
    events = (event for file in sorted((run / "attempts").glob(f"*/{EVENTS}")) for event in read_events(file))
    losses = [event.metrics.get("loss") for event in events if isinstance(event, Evaluated)]
    return SmallRun(losses[-1] if losses else None, dict(result.changes), peak_bytes(run), result.seconds)


def steps_wanted(steps: int) -> int:
    """How many steps are done before the kill."""
    return max(FEWEST_STEPS, min(MOST_STEPS, int(0.02 * steps)))


def kill_after_steps(folder: Path, wanted: int, run_child: Callable[[], str]) -> str:
    """Run a child and kill it after this many steps; return how it ended."""
    ended = threading.Event()
    killer = threading.Thread(target=_kill_after, args=(folder, wanted, ended), daemon=True)
    killer.start()
    try:
        return run_child()
    finally:
        ended.set()


def describe_first_steps(folder: Path) -> FirstSteps:
    """What the killed process had done and saved."""
    events = list(read_events(folder / EVENTS))
    steps = sum(isinstance(event, StepDone) for event in events)
    saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
    if not steps or not saved:
        return FirstSteps(state="failed")
    return FirstSteps(state="killed", steps=steps, saved_step=max(saved), peak_bytes=peak_bytes(folder))


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
