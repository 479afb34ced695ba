"""Stops a run on SIGTERM: the computation in progress is dropped and the state before it saved, within ten seconds.

Python runs signal handlers between two instructions of the main thread. A helper thread is woken by the signal itself,
so even a single endless call into native code cannot keep the process alive.
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


class StopSignal:
    """Whether the run was asked to stop."""

    def __init__(self, grace_seconds: float = _GRACE_SECONDS):
        self.is_asked = False
        self._may_interrupt, self._grace_seconds = False, grace_seconds

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Handle SIGTERM from here on; the process exits by itself if the run does not stop in time."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.signal(signal.SIGTERM, self._ask), signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._exit_in_time, args=(reader,), name="stopping", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before[1])
            signal.signal(signal.SIGTERM, before[0])
            os.close(writer)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let SIGTERM raise `Interrupted` in this block, which must not change anything that a checkpoint holds."""
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

    def _exit_in_time(self, reader: int) -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGTERM:
                time.sleep(self._grace_seconds)
                os._exit(STOPPED)  # a half-written checkpoint is only a draft; the one before it counts
        os.close(reader)
