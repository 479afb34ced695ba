"""Runs one attempt: start, watch, and when it ends or hangs: look, end the tree, name the cause.

Reads: the launch. Leaves: child.json, output.log, samples.jsonl, stacks/, evidence.json, diagnosis.json.
A hang is looked at before anything is ended: killing first destroys the only evidence.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from holdfast.core.artifacts import write_artifact
from holdfast.core.disk_space import FULL
from holdfast.core.evidence import Diagnosis, Evidence
from holdfast.core.old_events import Events, read_events
from holdfast.core.records import Outcome, OutcomeKind
from holdfast.core.runfolder import DIAGNOSIS, EVENTS, SAMPLES, STOP
from holdfast.hazards import find_hazard
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Child, Launch, start_child
from holdfast.supervisor.child_exits import ChildExit
from holdfast.supervisor.collect import Ending, collect, read_attempt_evidence
from holdfast.supervisor.diagnose import diagnose
from holdfast.supervisor.ending import end_tree, send
from holdfast.supervisor.ends import rank_exit_code
from holdfast.supervisor.members import Member, find_members
from holdfast.supervisor.memory_proof import MemoryMark
from holdfast.supervisor.outcome import (
    OUTSIDE,
    closing_words,
    is_at_end,
    last_error,
    newest_beat,
    was_ended_from_outside,
    weights_words,
)
from holdfast.supervisor.room import FullDisk
from holdfast.supervisor.sentence import one_sentence
from holdfast.supervisor.told import Told
from holdfast.supervisor.verdict import Verdict
from holdfast.supervisor.watch import Look, Watch

OnEvent = Callable[[str, Mapping[str, object]], None]
CallOff = Literal["", "end", "look"]  # go on; end, because it failed elsewhere; look first, because it hangs somewhere
NAN, EXIT = "nan-loss", "exit-crash"
NOTHING = Diagnosis(slug="unknown", confidence="unknown", title="nothing failed")

_TURN_SECONDS = 0.1  # how soon an exit or a wish to stop is seen
_SAMPLE_SECONDS = 5.0  # between two lines of samples.jsonl while all is well
_QUIET_SECONDS, _BUSY_SECONDS = 5.0, 60.0  # without progress, idle or at work, after which it is said what it does
_AGAIN_SECONDS = 60.0
_STOP_SECONDS = 60.0  # for a last checkpoint
_INTERRUPTED_SECONDS = 30.0  # for a script's own answer to Ctrl-C
_HUNG_GRACE_SECONDS = 2.0  # what hangs seldom answers
_STRAGGLER_SECONDS = 3.0  # for helpers that outlive a finished child, such as an upload


class StopRequest:
    """Whether somebody wants the run to end: once is a question, twice an order."""

    def __init__(self) -> None:
        self.count = 0
        self.signal = 0  # the one that asked first

    def ask(self, number: int = 0) -> None:
        """Ask the run to stop; the second time it ends at once."""
        self.signal = self.signal or number
        self.count += 1

    @property
    def is_asked(self) -> bool:
        """True from the first time on."""
        return self.count > 0


def run_attempt(
    launch: Launch,
    budgets: Budgets,
    on_event: OnEvent,
    stop: StopRequest,
    called_off: Callable[[], CallOff] = lambda: "",
) -> tuple[Outcome, Diagnosis]:
    """Run one attempt to its end; the outcome holds no number and no rung yet.

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
        on_event: OnEvent,
        stop: StopRequest,
        called_off: Callable[[], CallOff],
    ):
        self._launch, self._budgets, self._on_event, self._stop = launch, budgets, on_event, stop
        self._called_off = called_off
        self._call_off: CallOff = ""
        self._samples, self._told = Events(launch.attempt / SAMPLES), Told(launch.attempt / EVENTS)
        self._sampled_at, self._verdict = float("-inf"), ""
        self._full_disk = FullDisk(launch.attempt)
        self._phase, self._can_stop = "", False
        self._told_again_seconds = 0.0  # of silence, before it is told of again
        self._started = time.time()
        self._ender: threading.Thread | None = None

    def run(self) -> tuple[Outcome, Diagnosis]:
        """Start the child and stay with it until it is gone."""
        begun = time.monotonic()
        mark = MemoryMark()
        child = start_child(self._launch)
        try:
            return self._follow(child, mark, begun)
        except BaseException:  # a bug of ours: nothing may train on with nobody watching
            end_tree(self._launch.attempt, child, _HUNG_GRACE_SECONDS)
            raise

    def _follow(self, child: Child, mark: MemoryMark, begun: float) -> tuple[Outcome, Diagnosis]:
        watch = Watch(self._launch.attempt, child.pid, self._budgets)
        look = self._stay(child, watch, mark)
        code = child.poll()
        watch.close()
        self._pass_on()
        if self._launch.is_of_ranks and code is not None and code > 0:  # torchrun says 1, whatever has happened
            code = rank_exit_code(watch.exits.seen, self._launch.attempt, child.pid) or code
        if self._stop.is_asked:
            self._wait_for_ender()
            # Asked for just as it hung or ended, there was no ender.
            end_tree(self._launch.attempt, child, 0 if self._stop.count > 1 else _HUNG_GRACE_SECONDS)
            has_finished = code == 0 and look.step >= look.steps > 0
            outcome, diagnosis = _outcome("finished" if has_finished else "stopped", look, code), NOTHING
        elif code is None and self._call_off == "end":
            end_tree(self._launch.attempt, child, _HUNG_GRACE_SECONDS)
            outcome, diagnosis = replace(_outcome("interrupted", look, None), is_external=True), NOTHING
        elif code == 0 or (code is not None and self._is_all_done(child.pid, code)):
            self._end_stragglers(child)
            outcome, diagnosis = self._finished(look, child.pid, code), NOTHING
        else:
            outcome, diagnosis = self._name(child, watch, mark, look, code)
        seconds = round(time.monotonic() - begun, 3)
        return replace(outcome, seconds=seconds, started=round(self._started, 3)), diagnosis

    def _is_all_done(self, pid: int, code: int) -> bool:
        """Our engine says so once the model is on the disk, a script when its last line is done; a crash after that
        changes nothing."""
        told = any(event["event"] == "finished" for event in read_events(self._launch.attempt / EVENTS))
        return told or bool(closing_words(self._launch.attempt, pid, code))

    def _finished(self, look: Look, pid: int, code: int) -> Outcome:
        """A script with weights that are no numbers, or that crashes at its exit, has finished: but that is said."""
        outcome, attempt = _outcome("finished", look, code), self._launch.attempt
        for slug, words in ((NAN, weights_words(attempt)), (EXIT, closing_words(attempt, pid, code))):
            if words:
                return replace(outcome, sentence=words, diagnosis=slug, confidence="proven")
        return outcome

    def _stay(self, child: Child, watch: Watch, mark: MemoryMark) -> Look:
        """Watch until the child has ended, hangs, or has been asked to stop and is gone."""
        look, next_look = watch.look(), 0.0
        while child.poll() is None:
            now = time.monotonic()
            if now >= next_look:
                look = watch.look()
                mark.see_all(child.pid, look.pids)
                next_look = now + watch.next_look_seconds
                self._report(look, now)
                if words := self._full_disk.look(now):
                    self._on_event("disk full", {"words": words})
            call_off = self._called_off()  # which may also pass on a wish to stop
            if self._stop.is_asked:
                self._ask_to_stop(child)
            elif look.is_hung:
                return look
            elif call_off:
                self._call_off = call_off
                return look
            self._pass_on()
            self._on_event("turn", {})
            time.sleep(_TURN_SECONDS)
        last = watch.look()  # which also sees how the others of the tree ended
        phase, step, steps = newest_beat(self._launch.attempt)  # a page outlives its process
        if (child.poll() or 0) < 0 and is_at_end(self._launch.attempt, child.pid):
            phase = "end"
        return replace(last, phase=phase or look.phase, step=max(step, look.step), steps=max(steps, look.steps))

    def _name(
        self, child: Child, watch: Watch, mark: MemoryMark, look: Look, code: int | None
    ) -> tuple[Outcome, Diagnosis]:
        """Look at what failed, end what is left of it, and name the cause."""
        attempt, is_hung = self._launch.attempt, code is None
        self._on_event("hang" if is_hung else "died", {"step": look.step, "phase": look.phase, "words": look.because})
        exits = tuple(watch.exits.seen)
        ending = Ending(returncode=code, is_hung=is_hung, started=self._started)
        try:
            collect(attempt, ending, look, exits, mark, child)
            for words in end_tree(attempt, child, _HUNG_GRACE_SECONDS).left:
                self._on_event("left behind", {"words": words})
            evidence = read_attempt_evidence(attempt)
            diagnosis = diagnose(evidence)
            write_artifact(attempt, DIAGNOSIS, diagnosis)
        except OSError as trouble:  # the disk of the run folder is full, or gone
            end_tree(attempt, child, _HUNG_GRACE_SECONDS)
            evidence, diagnosis = Evidence(), _cannot_keep(trouble)
        error, place = last_error(evidence)
        error = "" if is_hung else error
        outcome = replace(
            _outcome("hung" if is_hung else "died", look, code),
            diagnosis=diagnosis.slug,
            confidence=diagnosis.confidence,
            sentence=one_sentence(attempt, evidence, diagnosis),
            error=error,
            place=place,
            noticed_after_seconds=round(look.noticed_after_seconds or 0.0, 3) if is_hung else None,
            is_external=diagnosis.slug in OUTSIDE or _is_outside(look, code, exits, mark),
        )
        self._on_event("diagnosis", {"slug": diagnosis.slug, "confidence": diagnosis.confidence})
        return outcome, diagnosis

    def _report(self, look: Look, now: float) -> None:
        """Tell of a new phase and of silence; write a sample now and then, and whenever the verdict changes."""
        where = {"phase": look.phase, "step": look.step, "steps": look.steps}
        if look.phase != self._phase:
            self._phase = look.phase
            self._on_event("phase", where)
        words = look.words
        is_working = look.judged.verdict in (Verdict.MOVING, Verdict.STARVED)
        is_quiet = look.silent_seconds >= (_BUSY_SECONDS if is_working else _QUIET_SECONDS)
        if is_quiet and look.silent_seconds >= self._told_again_seconds:
            self._told_again_seconds = max(2 * look.silent_seconds, _AGAIN_SECONDS)
            self._on_event("quiet", {**where, "seconds": round(look.silent_seconds, 1), "words": words})
        if not is_quiet:
            self._told_again_seconds = 0.0
        verdict = str(look.judged.verdict)
        if now - self._sampled_at >= _SAMPLE_SECONDS or verdict != self._verdict:
            self._sampled_at, self._verdict = now, verdict
            state = {**where, "resident_bytes": look.resident_bytes, "verdict": verdict, "words": words}
            self._samples.write("sample", **state)
        self._on_event("progress", {**where, "resident_bytes": look.resident_bytes, "words": words})

    def _pass_on(self) -> None:
        """Pass on what the child tells."""
        for event in self._told.new():
            self._can_stop = self._can_stop or bool(event.get("can_stop"))
            self._on_event(str(event.pop("event")), event)

    def _end_stragglers(self, child: Child) -> None:
        """Give helpers that outlive a finished child, such as an upload, a moment; then end them."""
        attempt, deadline = self._launch.attempt, time.monotonic() + _STRAGGLER_SECONDS
        while (left := _alive(attempt, child)) and time.monotonic() < deadline:
            time.sleep(_TURN_SECONDS)
        end_tree(attempt, child, _HUNG_GRACE_SECONDS)
        if left:
            who = ", ".join(f"pid {member.pid} ({member.name})" for member in left[:4]) + (" ..." if left[4:] else "")
            self._on_event(
                "leftovers ended", {"words": f"the command has finished; what it left running was ended: {who}"}
            )

    def _ask_to_stop(self, child: Child) -> None:
        """Ask the tree to save and end, in a thread of its own, so that a second wish can still be heard."""
        attempt = self._launch.attempt
        if self._ender is None:
            self._on_event("stopping", {"seconds": _STOP_SECONDS})
            self._ender = threading.Thread(target=self._end_gently, args=(child,), daemon=True)
            self._ender.start()
        if self._stop.count > 1:
            end_tree(attempt, child, 0)

    def _end_gently(self, child: Child) -> None:
        """Let a training that understands the file save and end by itself; a signal for the others."""
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


def _outcome(how: OutcomeKind, look: Look, code: int | None) -> Outcome:
    return Outcome(number=0, outcome=how, exit_code=code, phase=look.phase, step_reached=look.step, steps=look.steps)


def _is_outside(look: Look, code: int | None, exits: Sequence[ChildExit], mark: MemoryMark) -> bool:
    """True when somebody else ended or stopped it: that says nothing against the plan."""
    if code is None:
        return look.judged.verdict is Verdict.STOPPED
    proof = mark.proof({child.pid for child in exits})
    if was_ended_from_outside(code, proof.has_kill):
        return True
    # A launcher ends with a code of its own after a process of its tree was killed.
    first = min((child for child in exits if child.signal), key=lambda child: child.at_seconds, default=None)
    return (
        first is not None and first.signal == signal.SIGKILL and was_ended_from_outside(-signal.SIGKILL, proof.has_kill)
    )
