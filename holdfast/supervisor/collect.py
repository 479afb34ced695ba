"""Collects what can be seen of an attempt that hangs or has died, and reads it back as evidence.

On a hang it looks at the living processes and writes their stacks before anything is ended; after a death it asks the
counters, the pidfds and the disks. Every finding becomes one line; what a line means is for the hazards to say. All of
it takes less than ten seconds.

Reads: the attempt's folder and its processes. Leaves: stacks/, evidence.json.
"""

import dataclasses
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.evidence import Evidence, Frame, Stack, Text
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import EVENTS, EVIDENCE, OUTCOME, OUTPUT, STACKS
from holdfast.logs.exits import exit_words
from holdfast.logs.log_file import read_log_file
from holdfast.logs.log_text import read_evidence
from holdfast.supervisor.child import Child, free_room
from holdfast.supervisor.child_exits import signal_name
from holdfast.supervisor.closeup import look_closely
from holdfast.supervisor.curve import last_resident_bytes, resident_lines
from holdfast.supervisor.dumps import dump_stacks
from holdfast.supervisor.ends import Ends, read_places, read_ranks
from holdfast.supervisor.mac_reports import find_crash_report
from holdfast.supervisor.members import Identity, read_root
from holdfast.supervisor.memory_proof import MemoryMark
from holdfast.supervisor.own_code import own_lines
from holdfast.supervisor.own_exit import exit_lines
from holdfast.supervisor.rank_stacks import HELD, rank_lines, told_by_stacks
from holdfast.supervisor.room import room_lines

if TYPE_CHECKING:
    from holdfast.supervisor.child_exits import ChildExit
    from holdfast.supervisor.watch import Look

_CRASH_REPORT = "crash.ips"
_CRASH_REPORT_SECONDS = 3.0
_FORKED_AND_WAITING = re.compile(r"pid (\d+) .*waits for a lock.*forked without exec")
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt came to its end, as the one who watched it knows."""

    returncode: int | None = None  # negative for a signal; None when it was alive and given up
    is_hung: bool = False
    started: float = 0.0  # time of day

    @property
    def words(self) -> str:
        """Its end in the words of the evidence: "code 1", "signal SIGSEGV", "hang"."""
        if self.is_hung:
            return "hang"
        if self.returncode is not None and self.returncode < 0:
            return f"signal {signal_name(-self.returncode)}"
        return "" if self.returncode is None else exit_words(str(self.returncode))


def collect(
    attempt: Path,
    ending: Ending,
    look: "Look | None" = None,
    exits: "Sequence[ChildExit]" = (),
    mark: MemoryMark | None = None,
    child: Child | None = None,
) -> None:
    """Look at an attempt and write evidence.json. Call it before the tree is ended."""
    root = child.identity if child else read_root(attempt)
    pids = {end.pid for end in exits} | ({root.pid} if root else set())
    ranks, lines = read_ranks(attempt), list[str]()
    if ending.is_hung and root:
        # Before the dumps: a tool that attaches changes what threads wait in.
        lines += _asked("the processes", lambda: look_closely(root.pid))
        lines += _asked("the stacks", lambda: _dump(attempt, root, look, lines))
        if look:
            look = told_by_stacks(attempt, ranks, look)
            judged = look.judged  # of a rank whose others are on other machines it has no standings
            order = [one.pid for one in judged.standings] or (judged.pids if judged.verdict in HELD else ())
            lines += _asked("the ranks", lambda: rank_lines(attempt, ranks, order))
    lines = [*_verdict_lines(look, ending), *lines]
    code, words = ending.returncode or 0, list[str]()
    has_crashed = not ending.is_hung and -code in _CRASHES
    if root and (code > 0 or has_crashed):
        words = _asked("the program's own words", lambda: exit_lines(attempt, root.pid, has_crashed=has_crashed))
        lines += words
    if root and not words and (ending.is_hung or code < 0):
        lines += _asked("the program's own code", lambda: own_lines(attempt, root.pid, is_hung=ending.is_hung))
    ends = Ends(exits, ranks, root.pid if root else 0, read_places(attempt))
    lines += _asked("the exits", ends.lines)
    victim = ends.killed() or _launcher(ending, root, ranks)
    lines += _asked("the memory counters", lambda: _memory_lines(ending, mark, pids, victim))
    lines += _asked("the memory samples", lambda: resident_lines(attempt))
    if not _waits_for_disk(look):  # a disk that does not answer would not answer us either
        lines += _asked("the disks", lambda: room_lines(attempt))
    lines += _asked("the events", lambda: _event_lines(attempt))
    if has_crashed:
        lines += _asked("the crash reports", lambda: _keep_crash_report(attempt, pids, ending.started))
    free_room(attempt)  # after the disks were asked
    value = {
        "exit": ending.words,
        "phase": look.phase if look else "",
        "step": look.step if look else 0,
        "steps": look.steps if look else 0,
        "resident_bytes": (look.resident_bytes if look else 0) or last_resident_bytes(attempt),
        "noticed_after_seconds": look.noticed_after_seconds if look else None,
        "lines": lines,
    }
    write_artifact(attempt, EVIDENCE, value)


def read_attempt_evidence(attempt: Path) -> Evidence:
    """What was seen of an attempt: its output, its stacks, and the lines that were collected."""
    seen = read_collected(attempt)
    if part := seen.get("part"):  # of several machines, the one that is to blame
        return read_attempt_evidence(attempt / str(part))
    said = seen.get("lines")
    lines = [str(line) for line in said] if isinstance(said, list) else []
    output = attempt / OUTPUT
    exit_status = str(seen.get("exit", ""))
    evidence = read_log_file(output, exit_status) if output.exists() else read_evidence("", exit_status)
    for file in _stack_files(attempt):
        evidence = _joined(evidence, read_log_file(file))
    return dataclasses.replace(evidence, samples=Text("sample", ((0, line) for line in lines)))


def read_collected(attempt: Path) -> dict[str, object]:
    """The file that `collect` left; of an attempt that did not fail only how it ended."""
    if (attempt / EVIDENCE).exists():
        return read_artifact(attempt / EVIDENCE)
    outcome = read_artifact(attempt / OUTCOME)
    code = outcome.get("exit_code")
    return {"exit": "" if code is None else exit_words(str(code)), "phase": outcome.get("phase", "")}


def _verdict_lines(look: "Look | None", ending: Ending) -> Iterator[str]:
    if look is None:
        return
    if ending.is_hung and look.judged:
        yield f"verdict {look.judged.verdict}: {look.judged.words}"
    if ending.is_hung and look.because:
        yield f"given up: {look.because}"
    if look.phase:
        yield f"phase {look.phase}, step {look.step}" + (f" of {look.steps}" if look.steps else "")


def _asked(what: str, ask: Callable[[], Iterable[str]]) -> list[str]:
    """The lines that one of the lookers gives; one that breaks is a line of evidence and stops no other."""
    try:
        return list(ask())
    except Exception as error:
        return [f"{what} could not be looked at: {error!r}"]


def _dump(attempt: Path, root: Identity, look: "Look | None", seen: Sequence[str]) -> list[str]:
    """Take stacks: first of forked children that wait for a lock, for there may not be time for all."""
    forked = (_FORKED_AND_WAITING.match(line) for line in seen)
    first = [*(int(match[1]) for match in forked if match), *_culprits(look)]
    dump_stacks(attempt, root, native=_is_stuck(look), first=first)
    return []


def _culprits(look: "Look | None") -> list[int]:
    """The processes that show the verdict, and the training ones in the order of who holds up whom."""
    judged = look.judged if look else None
    return [*judged.pids, *(one.pid for one in judged.standings)] if judged else []


def _keep_crash_report(attempt: Path, pids: set[int], since: float) -> list[str]:
    if report := find_crash_report(pids, since, _CRASH_REPORT_SECONDS):
        (attempt / _CRASH_REPORT).write_text(report, encoding="utf-8")
    return []


def _waits_for_disk(look: "Look | None") -> bool:
    return bool(look and look.is_hung and look.judged and look.judged.verdict == "waits in the kernel")


def _is_stuck(look: "Look | None") -> bool:
    """True when a pause of the process costs nothing: it does not move anyway."""
    return look is None or look.judged is None or look.judged.verdict not in ("stopped", "in a debugger")


def _launcher(ending: Ending, root: Identity | None, ranks: Mapping[int, int]) -> str:
    """The process that ranks are looked after by, where it is that one which was killed."""
    is_it = ending.returncode == -signal.SIGKILL and len(ranks) > 1 and root and root.pid not in ranks
    return f"the launcher of the ranks (pid {root.pid})" if is_it and root else ""


def _memory_lines(ending: Ending, mark: MemoryMark | None, pids: set[int], victim: str) -> Iterator[str]:
    """What the counters say; and, where a process was killed and they say nothing, that it was not for memory."""
    proof = mark.proof(pids) if mark else None
    if proof:
        yield from proof.lines()
    if ending.returncode is None:
        return
    # A shell passes its child's signal on as 128 and its number.
    number = -ending.returncode if ending.returncode < 0 else ending.returncode - 128
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        yield f"ended from outside by {signal_name(number)}: we did not send it"
    was_killed = number == signal.SIGKILL or victim
    if was_killed and proof and not proof.has_kill and proof.could_be_asked:
        whom = f" of {victim}" if victim else ""
        yield f"killed from outside: SIGKILL{whom}, no OOM kill counted"


def _event_lines(attempt: Path) -> Iterator[str]:
    for event in read_events(attempt / EVENTS):
        if event.get("event") == "bad numbers":
            yield f"bad numbers at step {event.get('step', '?')}: {event.get('reason', '')}"
        elif event.get("event") == "skipped checkpoint":
            yield f"checkpoint {event.get('path', '?')} is not whole: {event.get('reason', '')}"
        elif event.get("event") == "checkpoint damaged":
            yield f"checkpoint {event.get('folder', '?')} is damaged: {event.get('reason', '')}"
        elif event.get("event") == "save failed" and event.get("is_full"):
            yield f"a checkpoint could not be saved: the disk was full at step {event.get('step', '?')}"


def _stack_files(attempt: Path) -> list[Path]:
    """The stacks that are there; of two of one process the one with native frames."""
    folder = attempt / STACKS
    native = {file.stem.partition("-")[2]: file for file in sorted(folder.glob("native-*.txt"))}
    spied = {file.stem.partition("-")[2]: file for file in sorted(folder.glob("spy-*.txt"))}
    written = [file for file in sorted(folder.glob("python-*.txt")) if file.stat().st_size]
    report = attempt / _CRASH_REPORT
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
