"""Ends a run on SIGTERM: what is being computed is dropped, the state before it saved, within ten seconds.

Python runs its signal handlers between two instructions of the main thread; a thread of ours is woken by the signal
itself, so that even one endless call into native code cannot hold the process.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = 143  # what a shell reports for a process that ended on SIGTERM
_GRACE_SECONDS = 9.0


class Interrupted(Exception):
    """The run was asked to stop in the middle of something that may be dropped."""


class Stopping:
    """Whether the run was asked to stop."""

    def __init__(self, grace_seconds: float = _GRACE_SECONDS):
        self.is_asked = False
        self._may_interrupt, self._grace_seconds = False, grace_seconds

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take SIGTERM as a question from here on; the process ends by itself when it is not answered in time."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.signal(signal.SIGTERM, self._ask), signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._end_in_time, args=(reader,), name="stopping", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before[1])
            signal.signal(signal.SIGTERM, before[0])
            os.close(writer)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the question interrupt what is done here: nothing of it may change what a checkpoint holds."""
        self._may_interrupt = True
        try:
            if self.is_asked:
                raise Interrupted
            yield
        finally:
            self._may_interrupt = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if self._may_interrupt:
            self._may_interrupt = False
            raise Interrupted

    def _end_in_time(self, reader: int) -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGTERM:
                time.sleep(self._grace_seconds)
                os._exit(STOPPED)  # a checkpoint that is half written is a draft, and the one before it counts
        os.close(reader)
