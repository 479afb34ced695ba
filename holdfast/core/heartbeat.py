"""The engine's heartbeat: one memory-mapped page with phase, step and a monotonic time.

The writer only touches memory, so a beat costs well under a microsecond and no system call, and the page outlives the
writer. A counter is odd while a beat is being written, so that a reader recognizes a torn beat.
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
# The counter is read again after the body: if it has changed, the body may mix two beats.
_PARTS = ((_COUNTER.size, 0), (_BODY.size, _COUNTER.size), (_COUNTER.size, 0))  # (bytes, offset)
_READS = 20  # even a writer that never pauses tears only a few reads, and never this many in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What the engine was doing, and when, on the system's monotonic clock."""

    phase: str
    step: int
    steps: int
    monotonic_ns: int
    count: int


class BeatWriter:
    """Writes beats to one page."""

    def __init__(self, path: Path):
        with path.open("wb+") as file:
            file.write(bytes(_PAGE_BYTES))  # real blocks: a hole would become a bus error once the disk is full
            file.flush()
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)
        self._count, self._phase, self._steps = 0, 0, 0

    def enter(self, phase: str, step: int = 0, steps: int = 0) -> None:
        """Report that a phase has begun."""
        self._phase, self._steps = PHASES.index(phase), steps
        self.beat(step)

    def beat(self, step: int) -> None:
        """Report that the engine is alive at this step of the phase."""
        _COUNTER.pack_into(self._page, 0, 2 * self._count + 1)
        _BODY.pack_into(self._page, 8, self._phase, step, self._steps, time.monotonic_ns())
        self._count += 1
        _COUNTER.pack_into(self._page, 0, 2 * self._count)


def read_beat(path: Path) -> Beat | None:
    """The last beat; None if no complete one can be read."""
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
    return None  # still odd: the writer was killed in the middle of a beat


def _beat(count: int, phase: int, step: int, steps: int, stamp: int) -> Beat | None:
    if count == 0 or phase >= len(PHASES):
        return None
    return Beat(phase=PHASES[phase], step=step, steps=steps, monotonic_ns=stamp, count=count)
