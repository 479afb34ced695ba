"""Finds the line of the user's own program at which an attempt hung or crashed.

Reads: stacks/ and child.json of the attempt, and the program's source. One's own is what lies below the folder of the
command or of its script, and in no installed library. What the line itself says is proof: `os.abort()` is no crash of
native code, and a lock waited for in one's own code, in a process that is alone, is no fault of the settings.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.artifacts import read_artifact
from holdfast.core.runfolder import CHILD, OUTPUT, STACKS

_SPIED = re.compile(r"^ +(?P<function>.+?) \((?P<file>[^()]+\.py):(?P<line>\d+)\)$", re.MULTILINE)
_WRITTEN = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_MAIN = re.compile(r'^Thread \d+ .*"MainThread"$', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3|^<")
_THREADING = ("threading.py", "queue.py", "concurrent/futures", "contextlib.py")
# CPython's own locks, as native stacks show them.
_PYTHON_LOCK = re.compile(r"PyThread_acquire_lock|_PyMutex_Lock|lock_PyThread|_PySemaphore_Wait")
_ENDS_ITSELF = re.compile(r"\bos\.abort\(\)|\bsignal\.raise_signal\(|\bos\.kill\(os\.getpid\(\)")
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a Python stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a program."""

    file: str
    line: int
    function: str
    source: str = ""  # what the line says

    @property
    def words(self) -> str:
        """The place as a person would look it up: `train.py:12 in save`."""
        return f"{self.file}:{self.line}" + (f" in {self.function}" if not self.function.startswith("<") else "")


def own_lines(attempt: Path, root_pid: int, *, is_hung: bool) -> Iterator[str]:
    """The evidence of an attempt's own code, as lines."""
    if is_hung:
        yield from _hang_lines(attempt, root_pid)
        return
    place = own_place(attempt, _written_frames(attempt, root_pid))
    if place and (said := _ENDS_ITSELF.search(place.source)):
        yield f"ended itself at {place.words}: {said[0]}" + (")" if said[0].count("(") > said[0].count(")") else "")
    elif place:
        yield f"crashed at {place.words}"


def python_frames(attempt: Path, pid: int) -> list[Frame]:
    """The calls of a process's main thread, innermost first, as far as any of its stacks was written down."""
    folder = attempt / STACKS
    for kind in ("native", "spy"):
        if frames := _frames(_SPIED, _main_thread(_read(folder / f"{kind}-{pid}.txt"))):
            return frames
    # Of faulthandler's dumps the last counts; it lists the main thread last.
    return _frames(_WRITTEN, _read(folder / f"python-{pid}.txt").rpartition("hread 0x")[2])


def own_place(attempt: Path, frames: list[Frame]) -> Place | None:
    """The innermost of some calls that is of one's own code."""
    child = read_artifact(attempt / CHILD)
    cwd = Path(str(child.get("cwd") or "."))
    command = child.get("command")
    scripts = [cwd / str(word) for word in command if str(word).endswith(".py")] if isinstance(command, list) else []
    folders = [cwd, *(script.parent for script in scripts)]
    for frame in frames:
        for folder in folders:
            file = folder / frame.file  # a whole path stays as it is
            is_below = any(file.is_relative_to(one) for one in folders)
            if not _LIBRARY.search(str(file)) and is_below and file.is_file():
                shown = file.relative_to(cwd) if file.is_relative_to(cwd) else file
                return Place(str(shown), frame.line, frame.function, _source(file, frame.line))
    return None


def _hang_lines(attempt: Path, root_pid: int) -> Iterator[str]:
    folder = attempt / STACKS
    native, spied = (_read(folder / f"{kind}-{root_pid}.txt") for kind in ("native", "spy"))
    frames = _frames(_SPIED, _main_thread(native or spied))
    place = own_place(attempt, frames)
    if place is None:
        return
    is_alone = not any(file.stem.partition("-")[2] != str(root_pid) for file in folder.glob("spy-*.txt"))
    innermost = next((frame.file for frame in frames if not frame.file.endswith(_THREADING)), "")
    is_own_lock = innermost.endswith(Path(place.file).name) and bool(_main_thread(native))
    # A thread that waits elsewhere, in a library or for the network, may be the one that settings reach.
    if is_alone and is_own_lock and all(_PYTHON_LOCK.search(thread) for thread in native.split("\nThread ")[1:]):
        yield f"waits for a lock of the program's own at {place.words}: {place.source}"
    else:
        yield f"stands at {place.words}"


def _main_thread(stack: str) -> str:
    """The part of a dump that shows the main thread."""
    found = _MAIN.search(stack)
    return stack[found.end() :].partition("\nThread ")[0] if found else ""


def _written_frames(attempt: Path, root_pid: int) -> list[Frame]:
    """The frames that faulthandler wrote for the thread that crashed."""
    for text in (_read(attempt / STACKS / f"python-{root_pid}.txt"), _read(attempt / OUTPUT)[-_TAIL_BYTES:]):
        if "Fatal Python error" in text:
            current = text.rpartition("Current thread ")[2].partition("\n\n")[0]
            return _frames(_WRITTEN, current)
    return []


def _frames(pattern: re.Pattern[str], text: str) -> list[Frame]:
    return [Frame(found["file"], int(found["line"]), found["function"]) for found in pattern.finditer(text)]


def _source(file: Path, line: int) -> str:
    lines = _read(file).splitlines()
    return lines[line - 1].strip()[:120] if 0 < line <= len(lines) else ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
