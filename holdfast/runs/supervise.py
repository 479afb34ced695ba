"""Supervises a run to its end: attempt, name the cause, take the next fallback, until it finishes or none is left.

One loop for every kind of run. What differs is in a `RunSpec`: how an attempt is started and what its fallbacks are.

    spec = RunSpec(kind="train", words="train reviews.csv", make_launch=launch, ladder=engine_ladder(settings))
    result = supervise(run, spec, print_event)
    raise SystemExit(result.exit_code)

`make_launch(attempt, changes, resume)` gets the folder of the attempt, everything that the ladder has changed in the
plan as requested (settings, and environment variables in capitals), and whether earlier work may be resumed. It writes
the attempt's settings.json and returns the `Launch`; it is called for every attempt. Exit code 0 of the child means
that the run has finished.

Each listener hears every event that is also written to RUN/events.jsonl (`core.events`), and those that only show
movement.

Order of what is written: start.json before the child starts, outcome.json once it has ended, decision.json before the
next attempt, result.json last. A supervisor that is killed in between leaves a folder from which the same call
continues: an attempt without an outcome was cut off, a decision without an attempt is carried out next.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from holdfast.core.disk_space import cannot_write, writing
from holdfast.core.errors import advice_text
from holdfast.core.event_log import EventSink
from holdfast.core.events import (
    MOVING,
    AttemptEnded,
    AttemptStarted,
    CauseCorrected,
    Decided,
    Event,
    RunFailed,
    RunFinished,
    RunStopped,
    SettingsRemembered,
)
from holdfast.core.evidence import Decision, Diagnosis
from holdfast.core.plan import DUMP_STACKS, Reason
from holdfast.core.records import AttemptStart, Changes, Outcome, Result, RunEnd, read_record, write_record
from holdfast.core.run_memory import RunMemory
from holdfast.core.runfolder import RESULT, STACKS, attempt_folder
from holdfast.core.settings import DEFAULT_MAX_ATTEMPTS
from holdfast.runs.cause_wording import with_own_command
from holdfast.runs.earlier_attempts import EarlierAttempts, read_earlier
from holdfast.runs.lease import Lease, hold
from holdfast.runs.peers import Peers
from holdfast.runs.run_events import RunEvents
from holdfast.supervisor.attempt import CallOff, StopRequest, run_attempt
from holdfast.supervisor.budgets import STEP_FLOOR_SECONDS, Budgets
from holdfast.supervisor.child import Launch
from holdfast.supervisor.ladder import Ladder, choose_fallback
from holdfast.supervisor.late_reports import LateReports
from holdfast.supervisor.outcome import engine_error, ineffective_changes, tried_of

__all__ = ["Result", "RunSpec", "StopRequest", "supervise"]

BUSY = "busy-livelock"
_LOOK_SECONDS = 0.25
PATIENCE_FACTOR, MOST_PATIENCE_SECONDS = 4.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What is supervised: how an attempt is started, and what may be changed when it fails."""

    kind: str  # "command" | "train"
    words: str  # what a person calls it: "python train.py"
    make_launch: Callable[[Path, Changes, bool], Launch]
    ladder: Ladder
    allow_changes: bool = False
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    nodes: int = 1  # machines that run each attempt together
    nodes_wait_seconds: float = 900.0  # for machines that have not come yet
    step_timeout_seconds: float | None = None  # None: learned
    memory: RunMemory | None = None  # None: nothing is remembered
    memory_key: str = ""  # what worked is remembered under it
    dropped_overrides: frozenset[str] = frozenset()  # changes of earlier attempts that a person has set again since
    describe_result: Callable[[Result], Result] | None = None  # fills in what only this kind of run has
    clean_up: Callable[[Path], None] | None = None  # called with the run's folder once it has finished


def supervise(
    run: Path, spec: RunSpec, *listeners: EventSink, stop: StopRequest | None = None, lease: Lease | None = None
) -> Result:
    """Run to the end and return how it ended; refuse if another supervisor has the run.

    A caller that has planned under a `lease` passes it on, so that nobody else takes the run in between.
    """
    stop = stop or StopRequest()
    report = RunEvents(run, *listeners)
    holding = contextlib.nullcontext(lease) if lease else hold(run, report=report, is_stopped=lambda: stop.is_asked)
    with holding as held, writing(run), kept_awake():
        return _Supervision(run, spec, report, stop, held).run()


class _Supervision:
    """The loop over attempts."""

    def __init__(self, run: Path, spec: RunSpec, report: EventSink, stop: StopRequest, lease: Lease):
        self._run, self._spec, self._report, self._stop, self._lease = run, spec, report, stop, lease
        self._peers = Peers(run, spec.nodes, lease, spec.nodes_wait_seconds) if spec.nodes > 1 else None
        self._begun, self._earlier_seconds = time.monotonic(), 0.0
        self._memory = spec.memory
        self._known = spec.memory.find(spec.memory_key) if spec.memory else None
        self._phases = self._known.phases if self._known else {}
        self._learnt: Mapping[str, float] = {}
        self._history: list[Outcome] = []
        self._late = LateReports()

    def run(self) -> Result:
        """Attempt until it finishes, is stopped, or nothing is left to try."""
        self._lease.require()  # planning may have taken longer than a lease
        (self._run / RESULT).unlink(missing_ok=True)  # it is running again
        earlier = read_earlier(self._run, self._report)
        history = self._history = list(earlier.counted)
        self._earlier_seconds = earlier.seconds
        decision = self._first(earlier)
        while True:
            number = earlier.next_number if not history else max(earlier.next_number, history[-1].number + 1)
            if self._peers and not self._gather(self._peers):
                self._lease.require()
                last = read_record(attempt_folder(self._run, number - 1), Outcome) if number > 1 else None
                return self._stopped(last or Outcome(number=0, outcome="stopped"))
            outcome, diagnosis = self._attempt(number, decision, resume=number > 1)
            history.append(outcome)
            self._late.expect(outcome, attempt_folder(self._run, number))
            if outcome.outcome == "finished":
                return self._finished(outcome)
            if outcome.outcome == "stopped":
                return self._stopped(outcome)
            decision = self._decide(diagnosis)
            if decision.action == "stop" and (corrected := self._await_report(number)):
                outcome, diagnosis = history[-1], corrected
                decision = self._decide(diagnosis)
            _keep(attempt_folder(self._run, number), decision)
            self._report(Decided(action=decision.action, fallback=_title(decision), reason=decision.reason))
            if self._stop.is_asked:
                return self._stopped(outcome)
            if decision.action == "stop":
                return self._failed(outcome, diagnosis, decision)

    def _decide(self, diagnosis: Diagnosis) -> Decision:
        return choose_fallback(
            diagnosis,
            [tried_of(one) for one in self._history],
            self._spec.ladder,
            allow_changes=self._spec.allow_changes,
            max_attempts=self._spec.max_attempts,
        )

    def _gather(self, peers: Peers) -> bool:
        """Wait for the other machines; this does not count as time of the run."""
        begun = time.monotonic()
        try:
            return peers.gather(self._report, self._stop)
        finally:
            self._begun += time.monotonic() - begun

    def _first(self, earlier: EarlierAttempts) -> Decision:
        """The settings of the first attempt: as before, as remembered, or as requested."""
        if earlier.changes or earlier.counted or earlier.next_number > 1:
            action: Literal["fallback", "again"] = "fallback" if earlier.fallback else "again"
            changes = {
                name: value for name, value in earlier.changes.items() if name not in self._spec.dropped_overrides
            }
            return Decision(action=action, reason=earlier.reason, fallback=earlier.fallback, changes=changes)
        known = self._known
        if known and known.changes:
            self._report(SettingsRemembered(changes=dict(known.changes), command=known.words))
            return Decision(action="again", reason=Reason(kind="remembered", title=known.words), changes=known.changes)
        return Decision(action="again", reason=Reason(kind="as_requested"))

    def _attempt(self, number: int, decision: Decision, resume: bool) -> tuple[Outcome, Diagnosis]:
        attempt = attempt_folder(self._run, number)
        start = AttemptStart(
            number=number,
            fallback=_title(decision),
            fallback_change=decision.fallback.change if decision.fallback else {},
            changes=decision.changes,
            reason=decision.reason,
            started=round(time.time(), 3),
        )
        try:
            attempt.mkdir(parents=True, exist_ok=True)
            write_record(attempt, start)
            self._report(
                AttemptStarted(
                    number=number,
                    fallback=start.fallback,
                    reason=decision.reason,
                    cost=decision.fallback.cost if decision.fallback else "",
                    changes=dict(decision.changes),
                    resume=resume,
                )
            )
            launch = self._spec.make_launch(attempt, decision.changes, resume)
        except OSError as error:
            raise cannot_write(self._run, error) from error
        budgets = Budgets(self._spec.step_timeout_seconds, self._phases, step_floor_seconds(self._history))
        outcome, diagnosis = self._run_attempt(number, decision, resume, launch, budgets)
        self._learnt = budgets.learnt()
        outcome = replace(
            outcome,
            number=number,
            fallback=start.fallback,
            fallback_change=start.fallback_change,
            changes=start.changes,
            ineffective=ineffective_changes(attempt, decision.changes, outcome),
        )
        _keep(attempt, outcome)
        if outcome.outcome in ("died", "hung"):
            self._report(
                AttemptEnded(
                    number=number,
                    outcome=outcome.outcome,
                    slug=outcome.diagnosis,
                    step=outcome.step_reached,
                    phase=outcome.phase,
                    noticed_after_seconds=outcome.noticed_after_seconds,
                    cause=outcome.cause or outcome.interruption,
                )
            )
        return outcome, with_own_command(diagnosis, launch.command)

    def _run_attempt(
        self, number: int, decision: Decision, resume: bool, launch: Launch, budgets: Budgets
    ) -> tuple[Outcome, Diagnosis]:
        """Run the attempt here, and with the other machines where there are any."""
        if self._peers:
            launch, part_stop = self._peers.call(number, decision.changes, resume, launch), StopRequest()
            called_off = self._peers.listen(self._stop, part_stop)
        else:
            part_stop, called_off = self._stop, self._is_called_off
        outcome, diagnosis = run_attempt(launch, budgets, self._watched, part_stop, called_off)
        if self._peers:
            outcome, diagnosis = self._peers.settle(outcome, diagnosis, self._report, self._stop)
        self._lease.require()
        return outcome, diagnosis

    def _is_called_off(self) -> CallOff:
        return "end" if self._lease.is_lost else ""

    def _finished(self, outcome: Outcome) -> Result:
        if self._memory and not outcome.cause:
            changes = {name: value for name, value in outcome.changes.items() if name not in outcome.ineffective}
            self._memory.remember(self._spec.memory_key, self._spec.words, changes, outcome.number, self._learnt)
        if self._spec.clean_up:
            self._spec.clean_up(self._run)
        return self._end("finished", 0, outcome, slug=outcome.diagnosis or "")

    def _stopped(self, outcome: Outcome) -> Result:
        code = 128 + self._stop.signal if self._stop.signal else 130
        return self._end("stopped", code, outcome)

    def _failed(self, outcome: Outcome, diagnosis: Diagnosis, decision: Decision) -> Result:
        attempt = attempt_folder(self._run, outcome.number)
        stacks = attempt / STACKS
        remedies = tuple(
            f"read the stacks in {stacks}" if remedy.command == DUMP_STACKS and stacks.exists() else advice
            for remedy in diagnosis.remedies
            if not remedy.change and (advice := remedy.command or remedy.title)
        )
        refused = engine_error(attempt)
        own = tuple(advice_text(advice) for advice in refused.try_next) if refused else ()
        return self._end("failed", decision.exit_code, outcome, own + remedies, diagnosis.slug)

    def _end(
        self,
        state: RunEnd,
        exit_code: int,
        outcome: Outcome,
        remedies: tuple[str, ...] = (),
        slug: str = "",
    ) -> Result:
        result = Result(
            state=state,
            exit_code=exit_code,
            attempts=outcome.number,
            seconds=round(self._earlier_seconds + time.monotonic() - self._begun, 3),
            child_exit_code=outcome.exit_code,
            changes=outcome.changes,
            remedies=remedies,
            slug=slug,
        )
        if self._spec.describe_result:
            result = self._spec.describe_result(result)
        self._report(_ENDED[state](exit_code=exit_code))
        self._lease.say(result=state, exit_code=exit_code)  # for the other machines
        _keep(self._run, result)
        return result

    def _correct(self) -> Diagnosis | None:
        """Correct the cause of each attempt whose crash report has come; the newest diagnosis, if there is one."""
        newest = None
        for outcome, newest in self._late.take():
            self._history[:] = [outcome if one.number == outcome.number else one for one in self._history]
            _keep(attempt_folder(self._run, outcome.number), outcome)
            if outcome.cause:
                event = CauseCorrected(
                    number=outcome.number, slug=newest.slug, confidence=newest.confidence, cause=outcome.cause
                )
                self._report(event)
        return newest

    def _await_report(self, number: int) -> Diagnosis | None:
        """Wait for the crash report of the last attempt: nothing else is left to do."""
        while self._late.is_expected(number) and not self._stop.is_asked:
            if newest := self._correct():
                return newest
            time.sleep(_LOOK_SECONDS)
        return None

    def _watched(self, event: Event) -> None:
        """Report an event of the attempt, and whether the storage still takes what the lease says."""
        self._report(event)
        self._correct()
        if isinstance(event, MOVING) and (trouble := self._lease.new_trouble()):
            self._report(trouble)


_ENDED = {"finished": RunFinished, "stopped": RunStopped, "failed": RunFailed}


def _keep(folder: Path, record: object) -> None:
    """Write a record of the run; a full disk does not undo what has happened."""
    with contextlib.suppress(OSError):
        write_record(folder, record)


def step_floor_seconds(history: Sequence[Outcome]) -> float:
    """How long any step may take: longer after each busy step that was given up, which may only have been slow."""
    given_up = sum(one.outcome == "hung" and one.diagnosis == BUSY for one in history)
    return min(STEP_FLOOR_SECONDS * PATIENCE_FACTOR**given_up, MOST_PATIENCE_SECONDS)


def _title(decision: Decision) -> str:
    return decision.fallback.title if decision.fallback else ""


@contextmanager
def kept_awake() -> Iterator[None]:
    """Keep a Mac from idle sleep while the body runs; do nothing on other systems."""
    if sys.platform != "darwin":
        yield
        return
    try:
        helper = subprocess.Popen(
            ["caffeinate", "-is", "-w", str(os.getpid())], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        helper = None
    try:
        yield
    finally:
        if helper:
            helper.terminate()
            helper.wait()
