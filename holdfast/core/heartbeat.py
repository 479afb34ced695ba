"""The engine's sign of life: one memory-mapped page with phase, step and a monotonic stamp.

The writer touches memory only, so a beat costs well under a microsecond and needs no system call; the page outlives
the writer. A counter that is odd while a beat is being written lets a reader tell a torn beat from a whole one.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

PHASES = (
    *("start", "import", "load", "resume", "compile", "begin epoch"),
    *("first step", "step", "evaluate", "save", "export", "end"),
    *("download", "tokenize"),
)

_PAGE_BYTES = 4096
_COUNTER = struct.Struct("<Q")
_BODY = struct.Struct("<QQQQ")  # phase, step, steps, monotonic nanoseconds
# The counter is read again after the body: one that moved meanwhile means that the body may be of two beats.
_PARTS = ((_COUNTER.size, 0), (_BODY.size, _COUNTER.size), (_COUNTER.size, 0))  # (bytes, offset)
_READS = 20  # a writer that beats without pause tears few reads; so many in a row never


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What the engine was doing, and when it said so on the system's monotonic clock."""

    phase: str
    step: int
    steps: int
    monotonic_ns: int
    count: int


class BeatWriter:
    """Writes beats to one page."""

    def __init__(self, path: Path):
        with path.open("wb+") as file:
            file.write(bytes(_PAGE_BYTES))  # not a hole, which a full disk would turn into a bus error later
            file.flush()
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)
        self._count, self._phase, self._steps = 0, 0, 0

    def enter(self, phase: str, step: int = 0, steps: int = 0) -> None:
        """Say that a phase has begun."""
        self._phase, self._steps = PHASES.index(phase), steps
        self.beat(step)

    def beat(self, step: int) -> None:
        """Say that the engine is alive at this step of the phase."""
        _COUNTER.pack_into(self._page, 0, 2 * self._count + 1)
        _BODY.pack_into(self._page, 8, self._phase, step, self._steps, time.monotonic_ns())
        self._count += 1
        _COUNTER.pack_into(self._page, 0, 2 * self._count)


def read_beat(path: Path) -> Beat | None:
    """The last beat, or None when there is no whole one."""
    try:
        with path.open("rb", buffering=0) as file:
            for _ in range(_READS):
                before, body, after = (os.pread(file.fileno(), *part) for part in _PARTS)
                if len(after) < _COUNTER.size or len(body) < _BODY.size:
                    return None
                (counter,) = _COUNTER.unpack(before)
                if before == after and counter % 2 == 0:
                    return _beat(counter // 2, *_BODY.unpack(body))
    except OSError:
        pass
    return None  # odd for good: the writer was killed in the middle of a beat


def _beat(count: int, phase: int, step: int, steps: int, stamp: int) -> Beat | None:
    if count == 0 or phase >= len(PHASES):
        return None
    return Beat(phase=PHASES[phase], step=step, steps=steps, monotonic_ns=stamp, count=count)
