"""Ends a run whose lease is not renewed, also while its keeper waits for a dead database: a thread of the keeper."""

import contextlib
import signal
import subprocess
import threading
import time
from pathlib import Path

from holdfast.runs.identity import kill_run

STOP_SHARE, KILL_SHARE = 0.5, 0.75  # of a lease without renewal: ask the run to save and stop; kill it
_TURN_SECONDS = 0.2


class Leash:
    """Ends the run when its lease was not renewed in time, also while the keeper itself waits for a dead database."""

    def __init__(self, run: Path, lease_seconds: float):
        self._run, self._lease_seconds = run, lease_seconds
        self._renewed_at = now()
        self._child: subprocess.Popen[bytes] | None = None
        self.has_pulled = False  # at this supervisor: that it stopped is nobody's wish
        threading.Thread(target=self._watch, daemon=True).start()

    def hold(self, child: "subprocess.Popen[bytes]") -> None:
        """Take a new supervisor on the leash."""
        self._child, self.has_pulled = child, False

    def renewed(self, asked_at: float) -> None:
        """A renewal that was asked for at that time came through."""
        self._renewed_at = asked_at

    def _watch(self) -> None:
        while True:
            time.sleep(_TURN_SECONDS)
            child, share = self._child, (now() - self._renewed_at) / self._lease_seconds
            if child is None or child.poll() is not None or share < STOP_SHARE:
                continue
            if share >= KILL_SHARE:
                log("the lease could not be renewed: the run is killed")
                kill_run(self._run, child.pid)
            elif not self.has_pulled:
                self.has_pulled = True
                log("the lease was not renewed for half of its time: the run is asked to save and stop")
                child.send_signal(signal.SIGTERM)


def now() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def log(words: str) -> None:
    """A line in the keeper's log."""
    with contextlib.suppress(OSError):  # a disk that has no room for a line must not end a run
        print(time.strftime("%F %T"), words, flush=True)
