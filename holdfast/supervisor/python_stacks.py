"""Reads Python stacks as py-spy prints them and as faulthandler writes them, thread by thread.

faulthandler writes a dump whenever the supervisor asks, one after the other into the same file, and lists the main
thread last: it is the oldest.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# 'train (script.py:12)' of py-spy; 'File "script.py", line 12 in train' of faulthandler
_SPIED = re.compile(r"^ +(?P<function>.+?) \((?P<file>[^()]+\.py):(?P<line>\d+)\)$", re.MULTILINE)
_WRITTEN = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_SPIED_MAIN = re.compile(r'^Thread \d+ .*"MainThread"$', re.MULTILINE)
_THREAD = re.compile(r"^(?=(?:Current t|T)hread 0x)", re.MULTILINE)
_NEXT_DUMP = re.compile(r"(?<!\n)\n(?=(?:Current t|T)hread 0x)")
_MOST_BYTES = 1 << 20

# How the standard library waits, and how a caller gives a limit.
_WAITING_FILES = ("threading.py", "queue.py", "concurrent/futures/_base.py", "concurrent/futures/thread.py")
_GIVEN = re.compile(
    r"timeout\s*=\s*(?!None\b)|\.(?:join|wait|result|acquire)\(\s*(?:[\d.]+|True\s*,|[a-z_]*(?:time|sec))"
)


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One call of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        """What the line says; empty when its file cannot be read."""
        lines = _lines_of(self.file)
        return lines[self.line - 1].strip() if 0 < self.line <= len(lines) else ""


def spied_calls(text: str) -> list[PythonCall]:
    """The calls in a part of what py-spy printed, innermost first."""
    return _calls(_SPIED, text)


def written_calls(text: str) -> list[PythonCall]:
    """The calls in a part of what faulthandler wrote, innermost first."""
    return _calls(_WRITTEN, text)


def spied_main_thread(text: str) -> str:
    """The part of py-spy's output that shows the main thread."""
    found = _SPIED_MAIN.search(text)
    return text[found.end() :].partition("\nThread ")[0] if found else ""


def last_dump(text: str) -> list[list[PythonCall]]:
    """The calls of each thread in the newest dump that faulthandler wrote, the main thread first."""
    # Blank lines are between threads; the next dump follows the last thread without one.
    newest = _NEXT_DUMP.split(text)[-1]
    threads = [calls for part in _THREAD.split(newest) if (calls := written_calls(part))]
    return [*threads[-1:], *threads[:-1]]


def read_dump(stacks: Path, pid: int, from_byte: int = 0) -> str:
    """What faulthandler wrote for a process, from a place in the file on."""
    try:
        with (stacks / f"python-{pid}.txt").open("rb") as file:
            file.seek(from_byte)
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def waits_forever(calls: Sequence[PythonCall]) -> bool | None:
    """Whether a thread that waits for a lock of Python waits without a limit; None when its lines do not say."""
    for call in calls:
        source = call.source
        is_library = call.file.replace("\\", "/").endswith(_WAITING_FILES)
        if not source:
            return None
        if not is_library:
            return not _GIVEN.search(source)
        if "acquire()" in source or source.startswith("with "):
            return True  # what Condition.wait says without a timeout
        if "acquire(True, timeout" in source:
            return False
        # Any other line hands a timeout on, which the caller gave or not.
    return None


def _calls(pattern: re.Pattern[str], text: str) -> list[PythonCall]:
    return [PythonCall(found["file"], int(found["line"]), found["function"]) for found in pattern.finditer(text)]


@lru_cache(maxsize=32)
def _lines_of(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()
