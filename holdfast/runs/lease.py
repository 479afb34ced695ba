"""Which machine leads a run: a lease on shared storage, for one supervisor at a time among many machines.

A lock of the file system is not enough: on many shared ones it reaches no further than one machine. Every holder makes
a folder of its own, leases/000001, 000002, ...; making a folder is all or nothing on every file system, and who has
made the newest one holds the run. It says so again every few seconds in a notice there. Another machine may make the
next folder only after that notice was given back, or was seen not to move for the length of the lease. A holder that
could not write for half of it must first make the next folder itself; when somebody else has, it has lost the run.

Leaves: leases/NNNNNN/notice.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.env import lease_seconds, node_name
from holdfast.core.errors import RequestError
from holdfast.core.notice import NoticeWriter, Seen
from holdfast.core.runfolder import LEASES, NOTICE
from holdfast.supervisor.clocks import read_clocks
from holdfast.supervisor.members import boot_id, find_member, start_ticks_of

_LOOK_SECONDS = 0.2
_ALL_PROCESSES = 0xEFFFFFFC  # what Linux calls the processes of the whole machine
Say = Callable[[str], None]


class AlreadyHeld(RequestError):
    """Somebody else supervises this run."""


class LostLease(AlreadyHeld):
    """Another machine has taken the run over while this one could not say that it lives."""


class Beating:
    """Says the same notice again every few seconds, in a thread of its own, until it is closed."""

    def __init__(self, path: Path, said: Mapping[str, object], since: float | None = None):
        self._writer, self._said = NoticeWriter(path), {**describe_self(), **said}
        self._lock, self._is_closed = threading.RLock(), threading.Event()
        self._trouble, self._told = "", ""  # why nothing can be written at the moment; what was said of it
        # When the last write that came through was begun.
        self._written = read_clocks().boot_seconds if since is None else since
        self._write()
        threading.Thread(target=self._go_on, name="holdfast-beat", daemon=True).start()

    def say(self, **words: object) -> None:
        """Say this too from now on."""
        with self._lock:
            self._said.update(words)
            self._write_if_possible()

    def close(self, **words: object) -> None:
        """Say the last words and no more."""
        self._is_closed.set()
        self.say(**words)

    def new_trouble(self) -> str:
        """Words, once, when the storage stops to answer and when it answers again."""
        trouble, before = self._trouble, self._told
        self._told = trouble
        if trouble and not before:
            return f"{trouble}; this goes on, and says so until it can be written again"
        return "the run's folder can be written again" if before and not trouble else ""

    def _go_on(self) -> None:
        while not self._is_closed.wait(beat_seconds()):
            with self._lock:
                if not self._is_closed.is_set():
                    self._write_if_possible()

    def _write_if_possible(self) -> None:
        # Not the time when it is done: nobody hears of a write that hangs, though it may come through at last.
        begun = read_clocks().boot_seconds
        try:
            self._renew(begun - self._written)
            self._write()
            self._written, self._trouble = begun, ""
        except OSError as error:
            self._trouble = f"the run's folder cannot be written: {error.strerror or error} ({self._writer.path})"

    def _renew(self, silent_seconds: float) -> None:
        """What has to be done first after a silence."""

    def _write(self) -> None:
        self._writer.write(self._said)


class Lease(Beating):
    """The lease of the process that leads a run."""

    def __init__(self, folder: Path, number: int, since: float):
        self._folder, self.number, self.is_lost = folder, number, False
        super().__init__(_notice_of(folder, number), {"state": "held"}, since)

    def close(self, **words: object) -> None:
        """Give the run back."""
        super().close(state="released", **words)

    def require(self) -> None:
        """Refuse to go on with a run that another machine leads by now; the storage is asked anew."""
        self.say()
        if self.is_lost:
            raise LostLease(
                "another machine has taken this run over",
                seen="this one could not write to the run's folder for longer than its lease",
                try_next=(f"holdfast watch {self._folder.parent}",),
            )

    def _renew(self, silent_seconds: float) -> None:
        if self.is_lost or silent_seconds < lease_seconds() / 2:
            return
        try:
            _path(self._folder, self.number + 1).mkdir()
        except FileExistsError:
            self.is_lost = True
            self._is_closed.set()
            return
        self.number += 1
        self._writer = NoticeWriter(_notice_of(self._folder, self.number))

    def _write(self) -> None:
        if not self.is_lost:
            super()._write()


def take_lease(run: Path, *, say: Say = lambda words: None, is_stopped: Callable[[], bool] = lambda: False) -> Lease:
    """Be the one that leads the run, or refuse; a holder on another machine that is silent is waited for."""
    folder = run / LEASES
    folder.mkdir(exist_ok=True)
    while True:
        newest = newest_lease(run)
        if newest:
            _wait_until_free(run, Seen(_notice_of(folder, newest)), say, is_stopped)
        begun = read_clocks().boot_seconds
        try:
            _path(folder, newest + 1).mkdir()
        except FileExistsError:
            continue  # another one was quicker
        return Lease(folder, newest + 1, begun)


def newest_lease(run: Path) -> int:
    """The number of the newest lease; 0 when nobody has led the run yet."""
    try:
        return max((int(name) for name in os.listdir(run / LEASES) if name.isdigit()), default=0)  # noqa: PTH208  (names alone)
    except FileNotFoundError:
        return 0


def seen_lease(run: Path, number: int) -> Seen:
    """What the holder of a lease says, to be looked at again and again."""
    return Seen(_notice_of(run / LEASES, number))


def beat_seconds() -> float:
    """How often a notice is said again."""
    return min(2.0, lease_seconds() / 10)


def describe_self() -> dict[str, object]:
    """What a notice must hold of its writer to know it again."""
    pid = os.getpid()
    described = {"pid": pid, "start_ticks": start_ticks_of(pid), "host": socket.gethostname(), "node": node_name()}
    return {**described, "machine": machine_id(), "hardware": _hardware_id(), "lease_seconds": lease_seconds()}


def machine_id() -> str:
    """Names the machine, its start and, in a container, the processes that can be seen from here."""
    return f"{boot_id() or socket.gethostname()} {_processes_id() or ''}".strip()


def is_here(said: Mapping[str, Any]) -> bool:
    """True when a living process of this very machine wrote a notice."""
    found = find_member(int(said.get("pid", 0))) if _is_of_this_start(said) else None
    return found is not None and not found.is_gone and found.start_ticks == said.get("start_ticks")


def is_here_and_gone(said: Mapping[str, Any]) -> bool:
    """True when the writer of a notice ran on this very machine and lives no more: no need to wait for it."""
    if _is_of_this_start(said):
        return not is_here(said)
    # The machine was started again since.
    return bool(_hardware_id()) and (said.get("hardware"), said.get("node")) == (_hardware_id(), node_name())


def _is_of_this_start(said: Mapping[str, Any]) -> bool:
    return (said.get("machine"), said.get("node")) == (machine_id(), node_name())


def _hardware_id() -> str:
    """Names the machine over its restarts; empty in a container, which may have been moved to another machine."""
    if _processes_id() != _ALL_PROCESSES:
        return ""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/etc/machine-id').read_text().strip()}"
    return ""


def _processes_id() -> int | None:
    """Names, on Linux, the processes that can be seen from here."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  (a name of the kernel, no file of ours)
    return None


def _wait_until_free(run: Path, seen: Seen, say: Say, is_stopped: Callable[[], bool]) -> None:
    """Return when the run may be taken; refuse when its holder is seen to live."""
    begun, has_said = time.monotonic(), False
    while True:
        said = seen.look() and seen.said
        limit = float(seen.said.get("lease_seconds", lease_seconds()))
        if said and (said.get("state") == "released" or is_here_and_gone(said)):
            return
        if seen.has_moved or (said and is_here(said)):
            raise AlreadyHeld(
                "another supervisor already looks after this run",
                seen=f"pid {said['pid']} on {said['node']}" if said else "",
                try_next=(f"holdfast watch {run}", f"holdfast stop {run}"),
            )
        # A folder without a notice: its maker was killed in between, or has only just made it.
        silent_seconds = seen.still_seconds if said else time.monotonic() - begun
        who = f"{said['node']} had this run" if said else "somebody took this run"
        if is_stopped():
            raise AlreadyHeld(f"{who}, and it was not waited for whether it comes back")
        if silent_seconds > limit:
            return
        if not has_said and silent_seconds > 2 * beat_seconds() + 1:
            has_said = True
            say(f"{who} and has not been heard of since; it is taken over when that lasts {limit:.0f} s")
        time.sleep(_LOOK_SECONDS)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _notice_of(folder: Path, number: int) -> Path:
    return _path(folder, number) / NOTICE
