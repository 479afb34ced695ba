"""Runs one attempt: start, watch, and when it ends or hangs: collect evidence, end the tree, name the cause.

Reads: the launch. Leaves: child.json, output.log, samples.jsonl, stacks/, evidence.json, diagnosis.json.
The evidence of a hang is collected before anything is ended: killing first destroys the only evidence.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from holdfast.core.disk_space import FULL
from holdfast.core.event_log import EventLog, EventSink, EventTail, read_events
from holdfast.core.events import (
    BackendChanged,
    BadNumbersFound,
    ChangeApplied,
    ChangeRefused,
    CheckpointFailed,
    CheckpointOverBudget,
    CheckpointRejected,
    CheckpointSkipped,
    Event,
    FailureNoticed,
    PartUsed,
    PhaseChanged,
    ProcessesEnded,
    ProcessesLeft,
    Progressed,
    Quiet,
    ResumeArgsChosen,
    Resumed,
    ResumeForeseen,
    StartedOver,
    StopStarted,
    Ticked,
    TrainingFinished,
    TreeSampled,
    WatchLimited,
)
from holdfast.core.evidence import Diagnosis, Evidence
from holdfast.core.observations import LeftProcess, Verdict
from holdfast.core.records import CollectedEvidence, Outcome, OutcomeKind, write_record
from holdfast.core.runfolder import EVENTS, SAMPLES, STOP
from holdfast.hazards import find_hazard
from holdfast.hazards.diagnose import diagnose
from holdfast.supervisor.attempt_watch import AttemptSample, AttemptWatch
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.cause import find_cause
from holdfast.supervisor.child import Child, Launch, start_child
from holdfast.supervisor.child_exits import ChildExit, rank_exit_code
from holdfast.supervisor.collect import Ending, collect, read_attempt_evidence
from holdfast.supervisor.disk_check import FullDisk
from holdfast.supervisor.ending import end_tree, send
from holdfast.supervisor.members import find_members
from holdfast.supervisor.memory_proof import MemoryMark
from holdfast.supervisor.outcome import (
    EXTERNAL,
    bad_weights,
    engine_error,
    exit_crash,
    is_at_end,
    last_error,
    newest_beat,
    was_killed_externally,
)
from holdfast.supervisor.processes import Member, this_system

# Continue; end, because it failed elsewhere; collect evidence first, because it hangs somewhere.
CallOff = Literal["", "end", "look"]
NOTHING = Diagnosis(slug="unknown", confidence="unknown", title="nothing failed")

_TURN_SECONDS = 0.1  # how soon an exit or a request to stop is seen
_SAMPLE_SECONDS = 5.0  # between two lines of samples.jsonl while nothing changes
_QUIET_SECONDS, _BUSY_SECONDS = 5.0, 60.0  # without progress, idle or at work, before it is reported
_AGAIN_SECONDS = 60.0
_STOP_SECONDS = 60.0  # for a last checkpoint
_INTERRUPTED_SECONDS = 30.0  # for a script's own answer to Ctrl-C
_HUNG_GRACE_SECONDS = 2.0  # a hanging process seldom answers
_STRAGGLER_SECONDS = 3.0  # for helpers that outlive a finished child, such as an upload
# What a person wants to hear while it happens; steps and losses are for the views that read them.
_PASSED_ON: tuple[type[Event], ...] = (
    *(PartUsed, Resumed, CheckpointRejected, ChangeApplied, ChangeRefused, BadNumbersFound),
    *(CheckpointSkipped, CheckpointFailed, CheckpointOverBudget, StartedOver, BackendChanged),
    *(ResumeArgsChosen, ResumeForeseen),
)


class StopRequest:
    """A stop request: the first one lets the run save, the second ends it immediately."""

    def __init__(self) -> None:
        self.count = 0
        self.signal = 0  # the one that asked first

    def ask(self, number: int = 0) -> None:
        """Ask the run to stop; the second request ends it immediately."""
        self.signal = self.signal or number
        self.count += 1

    @property
    def is_asked(self) -> bool:
        """True from the first time on."""
        return self.count > 0


def run_attempt(
    launch: Launch,
    budgets: Budgets,
    on_event: EventSink,
    stop: StopRequest,
    called_off: Callable[[], CallOff] = lambda: "",
) -> tuple[Outcome, Diagnosis]:
    """Run one attempt to its end; the outcome holds no number and no fallback yet.

    `called_off` is asked many times a second whether the other machines of the run still go on; an attempt that is
    called off is "interrupted", or "hung" where it was to be looked at first.
    """
    return _Attempt(launch, budgets, on_event, stop, called_off).run()


class _Attempt:
    """One attempt while it runs."""

    def __init__(
        self,
        launch: Launch,
        budgets: Budgets,
        on_event: EventSink,
        stop: StopRequest,
        called_off: Callable[[], CallOff],
    ):
        self._launch, self._budgets, self._on_event, self._stop = launch, budgets, on_event, stop
        self._called_off = called_off
        self._call_off: CallOff = ""
        self._samples, self._events = EventLog(launch.attempt / SAMPLES), EventTail(launch.attempt / EVENTS)
        self._sampled_at = float("-inf")
        self._unwritten: AttemptSample | None = None  # the last sample of living processes, unless it was written
        self._peak_bytes = 0
        self._verdict: Verdict | None = None
        self._full_disk = FullDisk(launch.attempt)
        self._phase, self._can_stop = "", False
        self._report_again_seconds = 0.0  # of silence, before it is reported again
        self._started = time.time()
        self._ender: threading.Thread | None = None

    def run(self) -> tuple[Outcome, Diagnosis]:
        """Start the child and stay with it until it is gone."""
        begun = time.monotonic()
        if blindness := this_system().blindness:
            self._on_event(WatchLimited(blindness=blindness))
        mark = MemoryMark()
        child = start_child(self._launch)
        try:
            return self._follow(child, mark, begun)
        except BaseException:  # a bug of ours: nothing may train on with nobody watching
            end_tree(self._launch.attempt, child, _HUNG_GRACE_SECONDS)
            raise

    def _follow(self, child: Child, mark: MemoryMark, begun: float) -> tuple[Outcome, Diagnosis]:
        watch = AttemptWatch(self._launch.attempt, child.pid, self._budgets)
        sample = self._stay(child, watch, mark)
        if self._unwritten:
            self._write_sample(self._unwritten)  # the peak, and how far a short attempt was
        code = child.poll()
        watch.close()
        self._pass_on()
        if self._launch.is_of_ranks and code is not None and code > 0:  # torchrun says 1, whatever has happened
            code = rank_exit_code(watch.exits.seen, self._launch.attempt, child.pid) or code
        if self._stop.is_asked:
            self._wait_for_ender()
            # Asked for just as it hung or ended, there was no ender.
            end_tree(self._launch.attempt, child, 0 if self._stop.count > 1 else _HUNG_GRACE_SECONDS)
            has_finished = code == 0 and sample.step >= sample.steps > 0
            outcome, diagnosis = _outcome("finished" if has_finished else "stopped", sample, code), NOTHING
        elif code is None and self._call_off == "end":
            end_tree(self._launch.attempt, child, _HUNG_GRACE_SECONDS)
            outcome, diagnosis = replace(_outcome("interrupted", sample, None), is_external=True), NOTHING
        elif code == 0 or (code is not None and self._is_all_done(child.pid, code)):
            self._end_stragglers(child)
            outcome, diagnosis = self._finished(sample, child.pid, code), NOTHING
        else:
            outcome, diagnosis = self._name(child, watch, mark, sample, code)
        seconds = round(time.monotonic() - begun, 3)
        return replace(outcome, seconds=seconds, started=round(self._started, 3)), diagnosis

    def _is_all_done(self, pid: int, code: int) -> bool:
        """Whether the work was done before the end: our engine says so once the model is on the disk, a script when
        its last line is done. A crash after that changes nothing."""
        events = read_events(self._launch.attempt / EVENTS)
        is_told = any(isinstance(event, TrainingFinished) for event in events)
        return is_told or exit_crash(self._launch.attempt, pid, code) is not None

    def _finished(self, sample: AttemptSample, pid: int, code: int) -> Outcome:
        """A script whose weights are not finite, or that crashes at its exit, has finished; its outcome says so too."""
        outcome, attempt = _outcome("finished", sample, code), self._launch.attempt
        cause = bad_weights(attempt) or exit_crash(attempt, pid, code)
        return replace(outcome, cause=cause, diagnosis=cause.slug, confidence="proven") if cause else outcome

    def _stay(self, child: Child, watch: AttemptWatch, mark: MemoryMark) -> AttemptSample:
        """Watch until the child has ended, hangs, or has been asked to stop and is gone."""
        sample, next_sample = watch.sample(), 0.0
        while child.poll() is None:
            now = time.monotonic()
            if now >= next_sample:
                sample = watch.sample()
                mark.see_all(child.pid, sample.pids, sample.resident_bytes)
                next_sample = now + watch.next_sample_seconds
                self._report(sample, now)
                if full := self._full_disk.check(now):
                    self._on_event(full)
            call_off = self._called_off()  # which may also pass on a request to stop
            if self._stop.is_asked:
                self._ask_to_stop(child)
            elif sample.is_hung:
                return sample
            elif call_off:
                self._call_off = call_off
                return sample
            self._pass_on()
            self._on_event(Ticked())
            time.sleep(_TURN_SECONDS)
        last = watch.sample()  # which also sees how the others of the tree ended
        phase, step, steps = newest_beat(self._launch.attempt)  # a page outlives its process
        if (child.poll() or 0) < 0 and is_at_end(self._launch.attempt, child.pid):
            phase = "end"
        return replace(last, phase=phase or sample.phase, step=max(step, sample.step), steps=max(steps, sample.steps))

    def _name(
        self, child: Child, watch: AttemptWatch, mark: MemoryMark, sample: AttemptSample, code: int | None
    ) -> tuple[Outcome, Diagnosis]:
        """Collect the evidence of a failure, end what is left of the tree, and name the cause."""
        attempt, is_hung = self._launch.attempt, code is None
        self._on_event(FailureNoticed(phase=sample.phase, step=sample.step, exit_code=code))
        exits = tuple(watch.exits.seen)
        ending = Ending(returncode=code, is_hung=is_hung, started=self._started, sees_exits=watch.exits.can_see)
        try:
            collected = collect(attempt, ending, sample, exits, mark, child)
            if left := end_tree(attempt, child, _HUNG_GRACE_SECONDS).left:
                self._on_event(ProcessesLeft(processes=list(left)))
            evidence = read_attempt_evidence(attempt)
            diagnosis = diagnose(evidence)
            write_record(attempt, diagnosis)
        except OSError as trouble:  # the disk of the run folder is full, or gone
            end_tree(attempt, child, _HUNG_GRACE_SECONDS)
            evidence, diagnosis, collected = Evidence(), _cannot_keep(trouble), CollectedEvidence(exit=ending.status)
        error, place = last_error(evidence)
        error = "" if is_hung else error
        cause = find_cause(evidence, diagnosis, collected)
        if refused := engine_error(attempt):
            error = refused.what
            cause = structs.replace(cause, error=error if cause.error else "")
        outcome = replace(
            _outcome("hung" if is_hung else "died", sample, code),
            diagnosis=diagnosis.slug,
            confidence=diagnosis.confidence,
            cause=cause,
            error=error,
            place=place,
            noticed_after_seconds=round(sample.noticed_after_seconds or 0.0, 3) if is_hung else None,
            is_external=diagnosis.slug in EXTERNAL or _is_external(sample, code, exits, mark),
        )
        return outcome, diagnosis

    def _report(self, sample: AttemptSample, now: float) -> None:
        """Report a new phase and silence; write a sample now and then, and whenever the verdict changes."""
        phase, step, steps, activity = sample.phase, sample.step, sample.steps, sample.activity
        if phase != self._phase:
            self._phase = phase
            self._on_event(PhaseChanged(phase=phase, step=step, steps=steps))
        is_working = sample.verdict.verdict in (Verdict.MOVING, Verdict.STARVED)
        is_quiet = sample.silent_seconds >= (_BUSY_SECONDS if is_working else _QUIET_SECONDS)
        if is_quiet and sample.silent_seconds >= self._report_again_seconds:
            self._report_again_seconds = max(2 * sample.silent_seconds, _AGAIN_SECONDS)
            silent = round(sample.silent_seconds, 1)
            self._on_event(Quiet(phase=phase, step=step, steps=steps, seconds=silent, activity=activity))
        if not is_quiet:
            self._report_again_seconds = 0.0
        verdict, resident = sample.verdict.verdict, sample.resident_bytes
        self._peak_bytes = max(self._peak_bytes, resident)
        if resident:
            self._unwritten = sample
        if now - self._sampled_at >= _SAMPLE_SECONDS or verdict != self._verdict:
            self._sampled_at, self._verdict = now, verdict
            self._write_sample(sample)
        self._on_event(Progressed(phase=phase, step=step, steps=steps, resident_bytes=resident, activity=activity))

    def _write_sample(self, sample: AttemptSample) -> None:
        self._unwritten = None
        self._samples.write(
            TreeSampled(
                phase=sample.phase,
                step=sample.step,
                steps=sample.steps,
                resident_bytes=sample.resident_bytes,
                peak_bytes=self._peak_bytes,
                activity=sample.activity,
            )
        )

    def _pass_on(self) -> None:
        """Pass on the child's events that are shown live."""
        for event in self._events.read():
            self._can_stop = self._can_stop or bool(getattr(event, "can_stop", False))
            if isinstance(event, _PASSED_ON):
                self._on_event(event)

    def _end_stragglers(self, child: Child) -> None:
        """Give helpers that outlive a finished child, such as an upload, a moment; then end them."""
        attempt, deadline = self._launch.attempt, time.monotonic() + _STRAGGLER_SECONDS
        while (left := _alive(attempt, child)) and time.monotonic() < deadline:
            time.sleep(_TURN_SECONDS)
        end_tree(attempt, child, _HUNG_GRACE_SECONDS)
        if left:
            processes = [LeftProcess(pid=member.pid, name=member.name) for member in left]
            self._on_event(ProcessesEnded(processes=processes, has_finished=True))

    def _ask_to_stop(self, child: Child) -> None:
        """Ask the tree to save and end, in a separate thread, so that a second request is still noticed."""
        attempt = self._launch.attempt
        if self._ender is None:
            self._on_event(StopStarted(seconds=_STOP_SECONDS))
            self._ender = threading.Thread(target=self._end_gently, args=(child,), daemon=True)
            self._ender.start()
        if self._stop.count > 1:
            end_tree(attempt, child, 0)

    def _end_gently(self, child: Child) -> None:
        """Let a training that supports the stop file save and end by itself; send the others a signal."""
        attempt, deadline = self._launch.attempt, time.monotonic() + _STOP_SECONDS
        if self._can_stop and _touch(attempt / STOP):
            _wait(child, deadline)
        elif self._stop.signal == signal.SIGINT and self._launch.takes_interrupts:
            for member in find_members(attempt, child.identity):  # as a terminal would: all of them
                send(member.identity, signal.SIGINT)
            _wait(child, time.monotonic() + _INTERRUPTED_SECONDS)
        end_tree(attempt, child, max(_HUNG_GRACE_SECONDS, deadline - time.monotonic()))

    def _wait_for_ender(self) -> None:
        while self._ender and self._ender.is_alive():
            if self._stop.count > 1:
                end_tree(self._launch.attempt, None, 0)
            self._ender.join(_TURN_SECONDS)


def _wait(child: Child, deadline: float) -> None:
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(_TURN_SECONDS)


def _alive(attempt: Path, child: Child) -> list[Member]:
    return [member for member in find_members(attempt, child.identity) if not member.is_gone]


def _touch(file: Path) -> bool:
    """Make an empty file; False where the disk has no room even for that."""
    try:
        file.touch()
    except OSError:
        return False
    return True


def _cannot_keep(trouble: OSError) -> Diagnosis:
    """The diagnosis of an attempt whose evidence could not even be written."""
    hazard = find_hazard("disk-full") if trouble.errno in FULL else None
    if hazard is None:
        return replace(NOTHING, title="the cause is not established", note=f"the evidence was lost: {trouble}")
    return Diagnosis(slug=hazard.slug, confidence="proven", title=hazard.title, remedies=hazard.remedies)


def _outcome(how: OutcomeKind, sample: AttemptSample, code: int | None) -> Outcome:
    return Outcome(
        number=0, outcome=how, exit_code=code, phase=sample.phase, step_reached=sample.step, steps=sample.steps
    )


def _is_external(sample: AttemptSample, code: int | None, exits: Sequence[ChildExit], mark: MemoryMark) -> bool:
    """True if it was ended or stopped externally, so the settings are not to blame."""
    if code is None:
        is_outside = sample.given_up is not None and sample.given_up.reason == "outside_too_long"
        return is_outside or sample.verdict.verdict is Verdict.STOPPED
    proof = mark.proof({child.pid for child in exits})
    can_tell = proof.rules_out_kill or proof.could_be_asked
    if was_killed_externally(code, is_oom=proof.has_kill, can_tell=can_tell):
        return True
    # A launcher ends with a code of its own after a process of its tree was killed.
    first = min((child for child in exits if child.signal), key=lambda child: child.at_seconds, default=None)
    is_kill = first is not None and first.signal == signal.SIGKILL
    return is_kill and was_killed_externally(-signal.SIGKILL, is_oom=proof.has_kill, can_tell=can_tell)
