"""The heartbeat of one process: a memory-mapped page `beats/PID`, with the same layout as `core.heartbeat`.

The page is made at the first beat, and again after a fork, so that data loader workers, which never beat, leave none. A
beat is a few stores into memory: no system call, about 0.3 microseconds.
"""

from __future__ import annotations

import mmap
import os
import sys
from _thread import get_ident
from time import monotonic_ns

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any, Callable

PHASES = (
    *("start", "import", "load", "resume", "compile", "begin epoch"),
    *("first step", "step", "evaluate", "save", "export", "end"),
    *("download", "tokenize"),
)
NUMBERS = {phase: number for number, phase in enumerate(PHASES)}
FIRST_STEP, STEP, BEGIN_EPOCH = NUMBERS["first step"], NUMBERS["step"], NUMBERS["begin epoch"]
EVALUATE = NUMBERS["evaluate"]

_PAGE_BYTES = 4096
_LOOK_NS = 1_000_000_000


class BeatPage:
    """The page of this process and its content."""

    __slots__ = ("_words", "counter", "folder", "look_ns", "looks", "main_thread", "phase", "step", "steps")

    def __init__(self, folder: str):
        self.folder = folder
        self.looks: list[Callable[[], None]] = []  # called about once per second, from a beat
        self.forget()

    def forget(self) -> None:
        """Start again as a new process."""
        self._words: Any = None
        self.counter = self.phase = self.step = self.steps = self.look_ns = 0
        self.main_thread = get_ident()

    def beat(self) -> None:
        """Report that the process is alive."""
        words = self._words
        if words is None:
            words = self._open()
        counter = self.counter
        words[0] = counter + 1  # odd while it is being written
        words[1] = self.phase
        words[2] = self.step
        words[3] = self.steps
        words[4] = now = monotonic_ns()
        words[0] = self.counter = counter + 2
        if now > self.look_ns:
            self._look(now)

    def stepped(self, optimizer: object = None, args: object = None, kwargs: object = None) -> None:
        """Report an optimizer step. torch calls this after every step, so it is the shortest possible beat."""
        words = self._words
        if words is None or self.phase != STEP:
            self.phase, self.step = STEP, self.step + 1
            return self.beat()
        # A reader between these two sees the new step with the old time. Both are true, so no odd counter is needed.
        words[2] = self.step = self.step + 1
        words[4] = now = monotonic_ns()
        words[0] = self.counter = self.counter + 2
        if now > self.look_ns:
            self._look(now)

    def enter(self, phase: int) -> int:
        """Begin a phase; return the previous one, for `leave`. Only the main thread has phases."""
        if get_ident() != self.main_thread:
            return -1
        before, self.phase = self.phase, phase
        self.beat()
        return before

    def leave(self, before: int) -> None:
        """End a phase begun by `enter`."""
        if before >= 0:
            self.phase = STEP if before == FIRST_STEP and self.step else before
            self.beat()

    def _look(self, now: int) -> None:
        self.look_ns = now + _LOOK_NS
        for look in self.looks:
            look()

    def _open(self) -> Any:
        try:
            page = _new_page(os.path.join(self.folder, str(os.getpid()))) if self.folder else bytearray(_PAGE_BYTES)
        except OSError:  # such as a full disk: beat into memory that nobody reads
            page = bytearray(_PAGE_BYTES)
        self._words = memoryview(page).cast("Q")
        return self._words


BeatPage.stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled optimizer must not trace into it
BEAT = BeatPage("")


def open_in(attempt: str) -> None:
    """Beat into this attempt's folder, in this process and its forks."""
    BEAT.folder = os.path.join(attempt, "beats")
    os.makedirs(BEAT.folder, exist_ok=True)
    BEAT.forget()
    BEAT.beat()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=BEAT.forget)


def _new_page(path: str) -> Any:
    if sys.byteorder != "little":
        raise OSError("the page is little-endian")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(file, bytes(_PAGE_BYTES))  # not a sparse file, which would turn a full disk into a bus error later
        return mmap.mmap(file, _PAGE_BYTES)
    finally:
        os.close(file)
