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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.core.disk_space import cannot_write
from holdfast.core.env import lease_seconds, node_name
from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.event_log import EventSink
from holdfast.core.events import Event, LeaderAwaited, Noted, StorageTrouble
from holdfast.core.notice import NoticeWriter, Seen
from holdfast.core.records import Supervisor, write_record
from holdfast.core.runfolder import LEASES, NOTICE
from holdfast.runs.process_identity import describe_process
from holdfast.runs.stop_signals import exit_code_of
from holdfast.supervisor.clocks import read_clocks
from holdfast.supervisor.members import Identity, boot_id, find_member, start_ticks_of

_LOOK_SECONDS = 0.2
_ALL_PROCESSES = 0xEFFFFFFC  # what Linux calls the processes of the whole machine


class AlreadyHeld(RequestError):
    """Somebody else supervises this run."""


class LostLease(AlreadyHeld):
    """Another machine has taken the run over while this one could not say that it lives."""


class Beating:
    """Says the same notice again every few seconds, in a thread of its own, until it is closed."""

    def __init__(self, path: Path, said: Mapping[str, object], since: float | None = None):
        self._writer, self._said = NoticeWriter(path), {**describe_self(), **said}
        self._lock, self._is_closed = threading.RLock(), threading.Event()
        self._trouble, self._reported = "", ""  # why nothing can be written at the moment; what was reported of it
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

    def new_trouble(self) -> Event | None:
        """An event, once, when the storage stops answering and when it answers again."""
        trouble, before = self._trouble, self._reported
        self._reported = trouble
        if trouble and not before:
            return StorageTrouble(error=trouble)
        return Noted(text="the run folder can be written again") if before and not trouble else None

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
            self._trouble = f"{error.strerror or error} ({self._writer.path})"

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


def take_lease(
    run: Path, *, report: EventSink = lambda event: None, is_stopped: Callable[[], bool] = lambda: False
) -> Lease:
    """Be the one that leads the run, or refuse; a holder on another machine that is silent is waited for."""
    folder = run / LEASES
    folder.mkdir(exist_ok=True)
    while True:
        newest = newest_lease(run)
        if newest:
            _wait_until_free(run, Seen(_notice_of(folder, newest)), report, is_stopped)
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


def _wait_until_free(run: Path, seen: Seen, report: EventSink, is_stopped: Callable[[], bool]) -> None:
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
        leader = str(said["node"]) if said else "another machine"
        if is_stopped():
            raise AlreadyHeld(f"stopped while waiting to see whether {leader} still owns this run")
        if silent_seconds > limit:
            return
        if not has_said and silent_seconds > 2 * beat_seconds() + 1:
            has_said = True
            report(LeaderAwaited(leader=leader, state="wait_for_lease", seconds=limit))
        time.sleep(_LOOK_SECONDS)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _notice_of(folder: Path, number: int) -> Path:
    return _path(folder, number) / NOTICE


__all__ = ["HELD_BY_OTHER", "AlreadyHeld", "hold", "holder"]

HELD_BY_OTHER = 75  # exit code of a supervisor that was refused; sysexits calls it "try again later"


@contextmanager
def hold(
    run: Path, *, report: EventSink = lambda event: None, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Lease]:
    """Be the run's only supervisor, or refuse; other machines learn with its end why the run was given back."""
    last: dict[str, object] = {}
    lease: Lease | None = None
    try:
        try:
            lease = take_lease(run, report=report, is_stopped=is_stopped)
            write_record(run, Supervisor(**describe_process(os.getpid()), started=round(time.time(), 3)))
        except OSError as error:
            raise cannot_write(run, error) from error
        yield lease
    except KeyboardInterrupt as asked:
        last = {
            "exit_code": exit_code_of(asked),
            "result": "stopped",
            "sentence": "stopped before an attempt was called",
        }
        raise
    except HoldfastError as error:
        last = {"exit_code": error.exit_code, "sentence": error.what + (f": {error.seen}" if error.seen else "")}
        raise
    finally:
        if lease:
            lease.close(**last)


def holder(run: Path) -> Identity | None:
    """The living supervisor of a run on this machine; None when nobody here looks after it."""
    seen = seen_lease(run, newest_lease(run))
    seen.look()
    if seen.said.get("state") != "held" or seen.said.get("machine") != machine_id():
        return None
    identity = Identity(int(seen.said["pid"]), int(seen.said["start_ticks"]))
    found = find_member(identity.pid)
    return identity if found and found.identity == identity and not found.is_gone else None
