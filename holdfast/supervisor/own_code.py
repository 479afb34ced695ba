"""Finds where the user's own program was: the line at which it hung or crashed, its last words, and each rank's place.

Reads: stacks/, child.json, events.jsonl and output.log of the attempt, and the program's source. The user's own code is
what is below the folder of the command or of its script, and in no installed library. The line itself is proof:
`os.abort()` is not a crash of native code, and a wait for a lock of the user's own code, in a process that is alone, is
no fault of the settings.

A rank that waits for the others is in a collective, and its stack says in which; the stack of the rank they wait for
says what holds it up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from holdfast.core.event_log import find_last
from holdfast.core.events import ExitHandlersEnded, ProgramEnded
from holdfast.core.observations import CodePlace, OwnCode, ProgramExit, RankStack, RankVerdict, Verdict
from holdfast.core.records import ChildInfo, read_record
from holdfast.core.runfolder import EVENTS, OUTPUT, STACKS
from holdfast.logs.log_lines import clean_lines
from holdfast.supervisor.mac_waits import read_sample
from holdfast.supervisor.python_stacks import (
    PythonCall,
    last_dump,
    read_dump,
    spied_calls,
    spied_main_thread,
    written_calls,
)

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3|^<")
_THREADING = ("threading.py", "queue.py", "concurrent/futures", "contextlib.py")
# CPython's own locks, as native stacks show them.
_PYTHON_LOCK = re.compile(r"PyThread_acquire_lock|_PyMutex_Lock|lock_PyThread|_PySemaphore_Wait")
_ENDS_ITSELF = re.compile(r"\bos\.abort\(\)|\bsignal\.raise_signal\(|\bos\.kill\(os\.getpid\(\)")
_TAIL_BYTES = 1 << 16
_EXIT_TAIL_BYTES, _LAST_LINES = 16_384, 20
# Our engine talks between ranks through one module: the line that calls it says more.
_ENGINE = re.compile(r"holdfast[/\\]engine[/\\](?!(?:distributed_)?ranks\.py)[\w./\\]+\.py$")
_RANK_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^(?:torch|transformers|numpy|importlib)[/\\.]|^<")
_COLLECTIVES = re.compile(r"torch[/\\]distributed[/\\]distributed_c10d\.py$")
HELD = (Verdict.STOPPED, Verdict.DEBUGGED)  # from outside, wherever its stack is
_WRAPPER = re.compile(r"(?:^|\.)wrapper$")


def find_own_code(attempt: Path, root_pid: int, *, is_hung: bool) -> Iterator[OwnCode]:
    """The line of the user's own program at which the attempt hung or crashed; nothing when it is not known."""
    if is_hung:
        yield from _own_hang(attempt, root_pid)
        return
    place = own_place(attempt, _crashed_frames(attempt, root_pid))
    if place and (call := _ENDS_ITSELF.search(place.source)):
        closed = ")" if call[0].count("(") > call[0].count(")") else ""
        yield OwnCode(how="ended_itself", place=place, call=call[0] + closed)
    elif place:
        yield OwnCode(how="crashed", place=place)


def find_program_exit(attempt: Path, root_pid: int, *, has_crashed: bool = False) -> Iterator[ProgramExit]:
    """The last message of a program that exited with a code; nothing if it raised an error.

    Python reports no SystemExit that was raised without `sys.exit`; then only the last line that was printed before the
    exit handlers is known, which mostly is its message. A message that Python has not printed belongs to an exit that
    the program caught. A process that crashed after that had left by its own decision only where it is known to have
    asked for a code.
    """
    ended = find_last(attempt / EVENTS, ProgramEnded)
    is_handled = find_last(attempt / EVENTS, ExitHandlersEnded) is not None  # or a handler took another way out
    if ended is None or ended.pid != root_pid or ended.has_raised:
        return
    if ended.is_clean if has_crashed else not is_handled:
        return
    crashed_after: Literal["", "exit_handler", "process"] = ""
    if has_crashed:
        crashed_after = "process" if is_handled else "exit_handler"
    lines = _last_lines(attempt / OUTPUT, ended.output_bytes)
    message = " ".join(ended.message.split())
    if message and message in " ".join(" ".join(lines).split()):
        yield ProgramExit(message=message, crashed_after=crashed_after)
    elif not (message and has_crashed):
        yield ProgramExit(last_line=lines[-1] if lines else "", crashed_after=crashed_after)


def python_frames(attempt: Path, pid: int) -> list[PythonCall]:
    """The calls of a process's main thread, innermost first, as far as any of its stacks was written down."""
    folder = attempt / STACKS
    for kind in ("native", "spy"):
        if calls := spied_calls(spied_main_thread(_read(folder / f"{kind}-{pid}.txt"))):
            return calls
    return next(iter(last_dump(read_dump(folder, pid))), [])


def own_place(attempt: Path, frames: list[PythonCall]) -> CodePlace | None:
    """The innermost of some calls that is in the user's own code."""
    child = read_record(attempt, ChildInfo)
    cwd = Path(child.cwd if child else ".")
    scripts = [cwd / word for word in child.command if word.endswith(".py")] if child else []
    folders = [cwd, *(script.parent for script in scripts)]
    for frame in frames:
        for folder in folders:
            file = folder / frame.file  # a whole path stays as it is
            is_below = any(file.is_relative_to(one) for one in folders)
            if not _LIBRARY.search(str(file)) and is_below and file.is_file():
                shown = file.relative_to(cwd) if file.is_relative_to(cwd) else file
                function = "" if frame.function.startswith("<") else frame.function
                return CodePlace(file=str(shown), line=frame.line, function=function, source=_source(file, frame.line))
    return None


def sort_by_stacks(attempt: Path, ranks: Sequence[RankVerdict]) -> tuple[RankVerdict, ...]:
    """The ranks ordered by their stacks: first those that do not wait for the others.

    Two ranks that wait for a lock look alike from outside; the stack of one of them says that it is in a collective.
    """
    return tuple(sorted(ranks, key=lambda one: one.verdict not in HELD and _is_in_collective(attempt, one.pid)))


def find_rank_stacks(attempt: Path, ranks: Mapping[int, int], order: Sequence[int]) -> Iterator[RankStack]:
    """Where each rank is, by its stack; those of `order` (pids) come first, and its first holds up the others."""
    for pid in dict.fromkeys([*(pid for pid in order if pid in ranks), *sorted(ranks, key=lambda pid: ranks[pid])]):
        if frames := python_frames(attempt, pid):
            yield _rank_stack(attempt, ranks[pid], pid, frames, holds_up=pid in order[:1])


def _rank_stack(attempt: Path, rank: int, pid: int, frames: list[PythonCall], *, holds_up: bool) -> RankStack:
    """The innermost line of the program or of our engine, and the collective or other function it has called."""
    place, collective = _rank_place(attempt, frames), _collective(frames)
    inner = collective or frames[0].function
    is_told = inner.startswith("<") or inner == place.function or (collective and not holds_up)
    return RankStack(
        rank=rank,
        pid=pid,
        place=place,
        collective="" if holds_up else collective,
        call="" if is_told else inner,
        holds_up=holds_up,
    )


def _is_in_collective(attempt: Path, pid: int) -> bool:
    return bool(_collective(python_frames(attempt, pid)))


def _rank_place(attempt: Path, frames: list[PythonCall]) -> CodePlace:
    for frame in frames:
        if found := _ENGINE.search(frame.file):
            return CodePlace(file=found[0], line=frame.line, function=frame.function)
    if own := own_place(attempt, frames):
        return replace(own, source="")
    other = next((frame for frame in frames if not _RANK_LIBRARY.search(frame.file)), frames[0])
    return CodePlace(file="/".join(Path(other.file).parts[-3:]), line=other.line, function=other.function)


def _collective(frames: list[PythonCall]) -> str:
    """The collective that a stack is in, by the name it was called by; empty when it is in none."""
    found = ""
    for frame in frames:
        if _COLLECTIVES.search(frame.file):
            found = frame.function
        elif not _WRAPPER.search(frame.function):
            break
    return found


def _own_hang(attempt: Path, root_pid: int) -> Iterator[OwnCode]:
    folder = attempt / STACKS
    written = {
        file.stem.partition("-")[2] for kind in ("native", "spy", "python") for file in folder.glob(f"{kind}-*.txt")
    }
    pids = [int(pid) for pid in written if pid.isdigit() and python_frames(attempt, int(pid))]
    # Under a wrapper, such as a shell or `uv run`, the only Python process is the program.
    pid = root_pid if root_pid in pids else pids[0] if len(pids) == 1 else 0
    frames = python_frames(attempt, pid)
    place = own_place(attempt, frames)
    if place is None:
        return
    innermost = next((frame.file for frame in frames if not frame.file.endswith(_THREADING)), "")
    threads = _native_threads(_read(folder / f"native-{pid}.txt"))
    is_own_lock = innermost.endswith(Path(place.file).name) and bool(threads)
    # A thread that waits elsewhere, in a library or for the network, may be the one that settings reach.
    is_alone = not any(file.stem.partition("-")[2] != str(pid) for file in folder.glob("spy-*.txt")) and len(pids) == 1
    if is_alone and is_own_lock and all(_PYTHON_LOCK.search(thread) for thread in threads):
        yield OwnCode(how="waits_for_own_lock", place=place)
    else:
        yield OwnCode(how="hung", place=place)


def _native_threads(text: str) -> list[str]:
    """The frames of each thread, by py-spy or by `sample`, without the threads of Holdfast itself."""
    if "Call graph:" in text:
        return ["\n".join(thread.frames) for thread in read_sample(text) if not thread.name.startswith("holdfast")]
    return text.split("\nThread ")[1:] if spied_main_thread(text) else []


def _crashed_frames(attempt: Path, root_pid: int) -> list[PythonCall]:
    """The calls that faulthandler wrote for the thread that crashed."""
    for text in (_read(attempt / STACKS / f"python-{root_pid}.txt"), _read(attempt / OUTPUT)[-_TAIL_BYTES:]):
        if "Fatal Python error" in text:
            return written_calls(text.rpartition("Current thread ")[2].partition("\n\n")[0])
    return []


def _source(file: Path, line: int) -> str:
    lines = _read(file).splitlines()
    return lines[line - 1].strip()[:120] if 0 < line <= len(lines) else ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _last_lines(output: Path, most_bytes: int | None) -> list[str]:
    """The last lines among the first bytes of a file."""
    try:
        with output.open("rb") as file:
            end = file.seek(0, 2) if most_bytes is None else most_bytes
            begin = file.seek(max(0, end - _EXIT_TAIL_BYTES))
            text = file.read(end - begin).decode(errors="replace")
    except OSError:
        return []
    lines = [line.strip() for _, line in clean_lines(enumerate(text.split("\n"))) if line.strip()]
    return lines[-_LAST_LINES:]
