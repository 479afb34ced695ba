"""Collects what can be seen of an attempt that hangs or has died, and reads it back as evidence.

On a hang it views the living processes and writes their stacks before anything is ended; after a death it asks the
counters, the pidfds and the disks. Every finding becomes one observation; what an observation means is for the hazards
to say. All of it takes less than ten seconds.

Reads: the attempt's folder and its processes. Leaves: stacks/, evidence.json.
"""

import dataclasses
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from holdfast.core.event_log import read_events
from holdfast.core.events import BadNumbersFound, CheckpointFailed, CheckpointRejected
from holdfast.core.evidence import Evidence, Frame, Stack, Text
from holdfast.core.observations import (
    Asked,
    ExitStatus,
    FailedProbe,
    KilledExternally,
    LastPhase,
    NonFiniteNumbers,
    Observation,
    ProcessExit,
    ProcessView,
    ProgramExit,
    Question,
    RankVerdict,
    TreeVerdict,
    UnsavedCheckpoint,
    UnusableCheckpoint,
    Verdict,
    WaitTarget,
)
from holdfast.core.records import CollectedEvidence, Outcome, read_record, write_record
from holdfast.core.runfolder import EVENTS, OUTPUT, STACKS
from holdfast.logs.exits import exit_status
from holdfast.logs.log_file import read_log_file, read_output_file
from holdfast.logs.log_text import read_evidence
from holdfast.supervisor.child import Child, free_room
from holdfast.supervisor.child_exits import ExitOrder, read_positions, read_ranks, signal_name
from holdfast.supervisor.disk_check import find_disk_space
from holdfast.supervisor.dumps import dump_stacks
from holdfast.supervisor.kill_sender import find_sender
from holdfast.supervisor.mac_reports import find_crash_report
from holdfast.supervisor.members import read_root
from holdfast.supervisor.memory_proof import MemoryMark, find_memory_use, last_resident_bytes
from holdfast.supervisor.own_code import HELD, find_own_code, find_program_exit, find_rank_stacks, sort_by_stacks
from holdfast.supervisor.process_view import view_processes
from holdfast.supervisor.processes import Identity, this_system

if TYPE_CHECKING:
    from holdfast.supervisor.attempt_watch import AttemptSample
    from holdfast.supervisor.child_exits import ChildExit

CRASH_REPORT = "crash.ips"
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended, as its supervisor knows it."""

    returncode: int | None = None  # negative for a signal; None when it was alive and given up
    is_hung: bool = False
    started: float = 0.0  # time of day
    sees_exits: bool = False  # whether this system tells how other processes end

    @property
    def status(self) -> ExitStatus | None:
        """The same as a value of the evidence."""
        if self.is_hung:
            return ExitStatus(is_hang=True)
        if self.returncode is not None and self.returncode < 0:
            return ExitStatus(signal=signal_name(-self.returncode))
        return None if self.returncode is None else exit_status(self.returncode)


def collect(
    attempt: Path,
    ending: Ending,
    sample: "AttemptSample | None" = None,
    exits: "Sequence[ChildExit]" = (),
    mark: MemoryMark | None = None,
    child: Child | None = None,
) -> CollectedEvidence:
    """Collect the evidence of an attempt into evidence.json. Call it before the tree is ended."""
    root = child.identity if child else read_root(attempt)
    pids = {end.pid for end in exits} | ({root.pid} if root else set())
    ranks, found = read_ranks(attempt), list[Observation]()
    verdict = sample.verdict if sample and ending.is_hung else None
    if ending.is_hung and root:
        # Before the dumps: a tool that attaches changes what threads wait in.
        found += _probe("processes", lambda: view_processes(root.pid))
        found += _probe("stacks", lambda: _dump(attempt, root, verdict, found))
        if verdict:
            if len(ranks) > 1:
                verdict = replace(verdict, ranks=sort_by_stacks(attempt, _numbered(verdict.ranks, ranks)))
            # Of a rank whose others are on other machines the verdict names no ranks.
            order = [one.pid for one in verdict.ranks] or (verdict.pids if verdict.verdict in HELD else ())
            found += _probe("ranks", lambda: find_rank_stacks(attempt, ranks, order))
    found = [*_sampled(sample, verdict), *found]
    code, last_words = ending.returncode or 0, list[Observation]()
    has_crashed = not ending.is_hung and -code in _CRASHES
    if root and (code > 0 or has_crashed):
        last_words = _probe("last words", lambda: find_program_exit(attempt, root.pid, has_crashed=has_crashed))
        found += last_words
    if root and (ending.is_hung or code < 0) and not any(isinstance(seen, ProgramExit) for seen in last_words):
        found += _probe("own code", lambda: find_own_code(attempt, root.pid, is_hung=ending.is_hung))
    order_of_exits = ExitOrder(exits, ranks, root.pid if root else 0, read_positions(attempt))
    found += _probe("exits", order_of_exits.observations)
    victim = order_of_exits.killed() or _launcher(ending, root, ranks)
    found += _probe("memory counters", lambda: _memory(ending, mark, pids, victim))
    found += _probe("memory samples", lambda: find_memory_use(attempt))
    if not (verdict and verdict.verdict is Verdict.KERNEL):  # a disk that does not answer would not answer us either
        found += _probe("disks", lambda: find_disk_space(attempt))
    found += _probe("events", lambda: _reported(attempt))
    if has_crashed:
        found += _probe("crash reports", lambda: _keep_crash_report(attempt, pids, ending.started))
    found += _asked(ending, sample, verdict)
    free_room(attempt)  # after the disks were asked
    collected = CollectedEvidence(
        exit=ending.status,
        phase=sample.phase if sample else "",
        step=sample.step if sample else 0,
        steps=sample.steps if sample else 0,
        resident_bytes=(sample.resident_bytes if sample else 0) or last_resident_bytes(attempt),
        noticed_after_seconds=sample.noticed_after_seconds if sample else None,
        observations=tuple(found),  # type: ignore[arg-type]  # every observation is one of the union
    )
    write_record(attempt, collected)
    return collected


def read_attempt_evidence(attempt: Path) -> Evidence:
    """What was seen of an attempt: its output, its stacks, and the observations that were collected."""
    collected = read_collected(attempt)
    if collected.part:  # of several machines, the one that is to blame
        return read_attempt_evidence(attempt / collected.part)
    output = attempt / OUTPUT
    evidence = read_output_file(output, collected.exit) if output.exists() else read_evidence("", collected.exit)
    for file in _stack_files(attempt):
        evidence = _joined(evidence, read_log_file(file))
    return dataclasses.replace(evidence, observations=collected.observations)


def read_collected(attempt: Path) -> CollectedEvidence:
    """What `collect` left; of an attempt that did not fail only how it ended."""
    if collected := read_record(attempt, CollectedEvidence):
        return collected
    outcome = read_record(attempt, Outcome)
    if outcome is None or outcome.exit_code is None:
        return CollectedEvidence(phase=outcome.phase if outcome else "")
    return CollectedEvidence(exit=exit_status(outcome.exit_code), phase=outcome.phase)


def _sampled(sample: "AttemptSample | None", verdict: TreeVerdict | None) -> Iterator[Observation]:
    """What the last sample showed."""
    if sample is None:
        return
    if verdict:
        yield verdict
    if sample.given_up:
        yield sample.given_up
    if sample.phase:
        yield LastPhase(phase=sample.phase, step=sample.step, steps=sample.steps)


def _asked(ending: Ending, sample: "AttemptSample | None", verdict: TreeVerdict | None) -> Iterator[Observation]:
    """What this system could be asked about the attempt."""
    questions: list[Question] = ["process_exits"] if ending.sees_exits else []
    if not (verdict and verdict.verdict is Verdict.KERNEL):
        questions.append("disks")
    wait = verdict.main.wait if verdict and verdict.main else None
    if wait and wait.target is not WaitTarget.UNKNOWN:
        questions.append("waits")
    if blindness := this_system().blindness:
        yield blindness
    yield Asked(questions=tuple(questions))


def _numbered(verdicts: Sequence[RankVerdict], ranks: Mapping[int, int]) -> list[RankVerdict]:
    """The same verdicts with the ranks that the processes reported."""
    return [replace(one, rank=ranks.get(one.pid, one.rank)) for one in verdicts]


def _probe(name: str, ask: Callable[[], Iterable[Observation]]) -> list[Observation]:
    """What one of the probes found; one that breaks becomes an observation and stops no other."""
    try:
        return list(ask())
    except Exception as error:
        return [FailedProbe(probe=name, error=repr(error))]


def _dump(attempt: Path, root: Identity, verdict: TreeVerdict | None, seen: Iterable[Observation]) -> list[Observation]:
    """Take stacks: first of forked children that wait for a lock, for there may not be time for all."""
    forked = [view.pid for view in seen if isinstance(view, ProcessView) and view.is_fork_in_lock]
    # Then the processes that show the verdict, and the training ones in the order of who holds up whom.
    culprits = [*verdict.pids, *(one.pid for one in verdict.ranks)] if verdict else []
    # A native stack pauses the process, which costs nothing as it does not move; a stopped process would never answer.
    can_pause = verdict is None or verdict.verdict not in HELD
    dump_stacks(attempt, root, native=can_pause, first=[*forked, *culprits])
    return []


def _keep_crash_report(attempt: Path, pids: set[int], since: float) -> list[Observation]:
    if report := find_crash_report(pids, since):
        (attempt / CRASH_REPORT).write_text(report, encoding="utf-8")
    return []


def _launcher(ending: Ending, root: Identity | None, ranks: Mapping[int, int]) -> KilledExternally | None:
    """The launcher of the ranks, when it is the process that was killed."""
    is_it = ending.returncode == -signal.SIGKILL and len(ranks) > 1 and root and root.pid not in ranks
    return KilledExternally(signal="SIGKILL", victim="launcher", pid=root.pid) if is_it and root else None


def _memory(
    ending: Ending, mark: MemoryMark | None, pids: set[int], victim: ProcessExit | KilledExternally | None
) -> Iterator[Observation]:
    """What the counters say; and, where a process was killed and they counted nothing, that it was not for memory."""
    proof = mark.proof(pids) if mark else None
    if proof:
        yield from proof.observations()
    if ending.returncode is None:
        return
    # A shell passes its child's signal on as 128 and its number.
    number = -ending.returncode if ending.returncode < 0 else ending.returncode - 128
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        yield KilledExternally(signal=signal_name(number))
    was_killed = number == signal.SIGKILL or victim
    if was_killed and proof and proof.rules_out_kill:
        killed = _killed(victim)
        sender, note = find_sender({killed.pid or 0, *pids}, mark.groups() if mark else (), ending.started)
        yield replace(killed, sender=sender, sender_note=note)


def _killed(victim: ProcessExit | KilledExternally | None) -> KilledExternally:
    if isinstance(victim, ProcessExit):
        who: Literal["rank", "worker"] = "worker" if victim.rank is None else "rank"
        return KilledExternally(signal="SIGKILL", victim=who, pid=victim.pid, rank=victim.rank, name=victim.name)
    return victim or KilledExternally(signal="SIGKILL")


def _reported(attempt: Path) -> Iterator[Observation]:
    """What the training itself reported."""
    for event in read_events(attempt / EVENTS):
        match event:
            case BadNumbersFound():
                yield NonFiniteNumbers(step=event.step or 0, reason=event.reason)
            case CheckpointRejected():
                yield UnusableCheckpoint(path=event.path, reason=event.reason, is_incomplete=not event.is_damaged)
            case CheckpointFailed(is_full=True):
                yield UnsavedCheckpoint(step=event.step)


def _stack_files(attempt: Path) -> list[Path]:
    """The stacks that are there; of two of one process the one with native frames."""
    folder = attempt / STACKS
    native = {file.stem.partition("-")[2]: file for file in sorted(folder.glob("native-*.txt"))}
    spied = {file.stem.partition("-")[2]: file for file in sorted(folder.glob("spy-*.txt"))}
    written = [file for file in sorted(folder.glob("python-*.txt")) if file.stat().st_size]
    report = attempt / CRASH_REPORT
    return [*{**spied, **native}.values(), *written, *([report] if report.exists() else [])]


def _joined(evidence: Evidence, stacks: Evidence) -> Evidence:
    """Add a file of stacks. Its lines get number 0: they are none of the log's."""
    return dataclasses.replace(
        evidence,
        log=_appended(evidence.log, stacks.log),
        errors=_appended(evidence.errors, stacks.errors),
        frames=_appended(evidence.frames, stacks.frames),
        stacks=(*evidence.stacks, *(_unnumbered(stack) for stack in stacks.stacks)),
    )


def _appended(text: Text, more: Text) -> Text:
    lines: Iterable[tuple[int, str]] = ((passage.line, passage.text) for passage in text)
    return Text(text.source, [*lines, *((0, passage.text) for passage in more)])


def _unnumbered(stack: Stack) -> Stack:
    frames: tuple[Frame, ...] = tuple(dataclasses.replace(frame, line=0) for frame in stack.frames)
    return dataclasses.replace(stack, frames=frames)
