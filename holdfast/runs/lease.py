"""Who leads a run: one supervisor at a time, by a lease that holds on this machine and on others.

A file lock is not enough: on many shared file systems it only works within one machine. So every supervisor that takes
the run creates the next folder, leases/000001, 000002, ...: creating a folder is atomic on every file system, and the
supervisor that created the newest one leads. It renews a notice there every few seconds.

Two rules keep two supervisors apart, with no clock compared between machines:
- another machine may create the next folder only after the lease was released, or after it saw no change of the notice
  for the length of the lease;
- a leader that could not write for half of the lease must first create the next folder itself. If another machine has
  already created it, the run is lost to that machine, and nothing more is written.

Leaves: leases/NNNNNN/notice, supervisor.json.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.disk_space import cannot_write
from holdfast.core.env import given_node_name, lease_seconds, node_name
from holdfast.core.errors import HoldfastError, RequestError, as_record
from holdfast.core.event_log import EventSink
from holdfast.core.events import Event, LeaderAwaited, StorageRestored, StorageTrouble
from holdfast.core.notice import NoticeWriter, Seen
from holdfast.core.records import LeaseNotice, Supervisor, SupervisorNotice, write_record
from holdfast.core.runfolder import LEASES, NOTICE
from holdfast.runs.process_identity import describe_process
from holdfast.runs.stop_signals import exit_code_of
from holdfast.supervisor.clocks import read_clocks
from holdfast.supervisor.members import boot_id, find_member, start_ticks_of
from holdfast.supervisor.processes import Identity, this_system

HELD_BY_OTHER = 75  # exit code of a supervisor that was refused; sysexits calls it "try again later"

N = TypeVar("N", bound=SupervisorNotice)

_LOOK_SECONDS = 0.2
_ALL_PROCESSES = 0xEFFFFFFC  # the name on Linux of the PID namespace of the whole machine


class AlreadyHeld(RequestError):
    """Another supervisor leads this run."""


class LostLease(AlreadyHeld):
    """Another machine has taken over the run while this one could not renew its lease."""


class Heartbeat(Generic[N]):
    """Writes the same notice every few seconds, in a separate thread, until it is closed."""

    def __init__(self, path: Path, notice: N, since: float | None = None):
        self._writer, self.notice = NoticeWriter(path), notice
        self._lock, self._is_closed = threading.RLock(), threading.Event()
        self._trouble, self._reported = "", ""  # why nothing can be written at the moment; what was reported of it
        # When the last successful write began.
        self._written = read_clocks().boot_seconds if since is None else since
        self._write()
        threading.Thread(target=self._keep_beating, name="holdfast-beat", daemon=True).start()

    def say(self, **fields: Any) -> None:
        """Change what the notice says from now on."""
        with self._lock:
            self.notice = replace(self.notice, **fields)
            self._write_if_possible()

    def close(self, **fields: Any) -> None:
        """Write the notice for the last time."""
        self._is_closed.set()
        self.say(**fields)

    def new_trouble(self) -> Event | None:
        """An event, once, when the storage stops answering and when it answers again."""
        trouble, before = self._trouble, self._reported
        self._reported = trouble
        if trouble and not before:
            return StorageTrouble(error=trouble)
        return StorageRestored() if before and not trouble else None

    def _keep_beating(self) -> None:
        while not self._is_closed.wait(beat_seconds()):
            with self._lock:
                if not self._is_closed.is_set():
                    self._write_if_possible()

    def _write_if_possible(self) -> None:
        # When the write began, not when it ended: a write that hangs may succeed only after another machine has taken
        # the silence for the end of the lease.
        begun = read_clocks().boot_seconds
        try:
            self._renew(begun - self._written)
            self._write()
            self._written, self._trouble = begun, ""
        except OSError as error:
            self._trouble = f"{error.strerror or error} ({self._writer.path})"

    def _renew(self, silent_seconds: float) -> None:
        """What must be done first after a silence."""

    def _write(self) -> None:
        self._writer.write(self.notice)


class Lease(Heartbeat[LeaseNotice]):
    """The lease of the process that leads a run."""

    def __init__(self, folder: Path, number: int, since: float):
        self._folder, self.number, self.is_lost = folder, number, False
        super().__init__(_notice_of(folder, number), describe_self(LeaseNotice, state="held"), since)

    def close(self, **fields: Any) -> None:
        """Release the run."""
        super().close(state="released", **fields)

    def require(self) -> None:
        """Refuse to continue if another machine now leads the run; the storage is read again."""
        self.say()
        if self.is_lost:
            raise LostLease(
                "another machine has taken over this run",
                found="this machine could not write to the run folder for longer than its lease",
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
    """Lead the run, or refuse; a leader on another machine that is silent is waited for."""
    folder = run / LEASES
    folder.mkdir(exist_ok=True)
    while True:
        newest = newest_lease(run)
        if newest:
            _wait_until_free(run, seen_lease(run, newest), report, is_stopped)
        begun = read_clocks().boot_seconds
        try:
            _path(folder, newest + 1).mkdir()
        except FileExistsError:
            continue  # another supervisor was quicker
        return Lease(folder, newest + 1, begun)


def newest_lease(run: Path) -> int:
    """The number of the newest lease; 0 if no machine has led the run yet."""
    try:
        return max((int(name) for name in os.listdir(run / LEASES) if name.isdigit()), default=0)  # noqa: PTH208  (names alone)
    except FileNotFoundError:
        return 0


def seen_lease(run: Path, number: int) -> Seen[LeaseNotice]:
    """The notice of a lease, to be looked at again and again."""
    return Seen(_notice_of(run / LEASES, number), LeaseNotice)


def beat_seconds() -> float:
    """How often a notice is renewed."""
    return min(2.0, lease_seconds() / 10)


def describe_self(kind: type[N], **fields: Any) -> N:
    """A notice of this process, with what is needed to know it again."""
    pid = os.getpid()
    return kind(
        pid=pid,
        start_ticks=start_ticks_of(pid),
        host=socket.gethostname(),
        node=node_name(),
        machine=machine_id(),
        hardware=_hardware_id(),
        lease_seconds=lease_seconds(),
        **fields,
    )


def machine_id() -> str:
    """Names the machine, its start and, in a container, the processes that can be seen from here.

    The host name is in it only where the system names no start: macOS changes it with the network.
    """
    return f"{boot_id() or socket.gethostname()} {_processes_id() or ''}".strip()


def is_here(notice: SupervisorNotice) -> bool:
    """True when a living process of this machine wrote a notice."""
    found = find_member(notice.pid) if _is_of_this_start(notice) else None
    return found is not None and not found.is_gone and found.start_ticks == notice.start_ticks


def is_here_and_gone(notice: SupervisorNotice) -> bool:
    """True if the writer of a notice ran on this machine and is dead, so there is no need to wait for it."""
    if _is_of_this_start(notice):
        return not is_here(notice)
    # The machine was started again since.
    return bool(_hardware_id()) and notice.hardware == _hardware_id() and _is_of_this_node(notice)


def _is_of_this_start(notice: SupervisorNotice) -> bool:
    return notice.machine == machine_id() and _is_of_this_node(notice)


def _is_of_this_node(notice: SupervisorNotice) -> bool:
    """False when several nodes of a run share this machine, and the notice is another's."""
    return given_node_name() in ("", notice.node)


def _hardware_id() -> str:
    """Names the machine over its restarts; empty in a container, which may have been moved to another machine.

    Copies of a Linux image may share /etc/machine-id, so the host name is added there. A Mac's hardware has a UUID.
    """
    found = this_system().hardware_id()
    if not found or _processes_id() not in (_ALL_PROCESSES, None):
        return ""
    host = "" if sys.platform == "darwin" else socket.gethostname()
    return f"{host} {found}".strip()


def _processes_id() -> int | None:
    """On Linux, identifies the PID namespace of this process."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  (a name of the kernel, no file of ours)
    return None


def _wait_until_free(run: Path, seen: Seen[LeaseNotice], report: EventSink, is_stopped: Callable[[], bool]) -> None:
    """Return when the run may be taken; refuse if its leader is alive."""
    begun, has_reported = time.monotonic(), False
    while True:
        notice = seen.look()
        if notice and (notice.state == "released" or is_here_and_gone(notice)):
            return
        if notice and (seen.has_moved or is_here(notice)):
            raise AlreadyHeld(
                "this run already has a supervisor",
                found=f"pid {notice.pid} on {notice.node}",
                try_next=(f"holdfast watch {run}", f"holdfast stop {run}"),
            )
        # A folder without a notice: its creator was killed before writing it, or has only just created the folder.
        silent_seconds = seen.still_seconds if notice else time.monotonic() - begun
        limit = notice.lease_seconds if notice else lease_seconds()
        leader = notice.node if notice else "another machine"
        if is_stopped():
            raise AlreadyHeld(f"stopped while waiting to see whether {leader} still owns this run")
        if silent_seconds > limit:
            return
        if not has_reported and silent_seconds > 2 * beat_seconds() + 1:
            has_reported = True
            report(LeaderAwaited(leader=leader, state="wait_for_lease", seconds=limit))
        time.sleep(_LOOK_SECONDS)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _notice_of(folder: Path, number: int) -> Path:
    return _path(folder, number) / NOTICE


@contextmanager
def hold(
    run: Path, *, report: EventSink = lambda event: None, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Lease]:
    """Be the run's only supervisor, or refuse; the last notice tells other machines why the run was released."""
    last: dict[str, Any] = {}
    lease: Lease | None = None
    try:
        try:
            lease = take_lease(run, report=report, is_stopped=is_stopped)
            write_record(run, Supervisor(**describe_process(os.getpid()), started=round(time.time(), 3)))
        except OSError as error:
            raise cannot_write(run, error) from error
        yield lease
    except KeyboardInterrupt as asked:
        last = {"exit_code": exit_code_of(asked), "result": "stopped"}
        raise
    except HoldfastError as error:
        last = {"exit_code": error.exit_code, "error": as_record(error)}
        raise
    finally:
        if lease:
            lease.close(**last)


def holder(run: Path) -> Identity | None:
    """The living supervisor of a run on this machine; None when it has none here."""
    notice = seen_lease(run, newest_lease(run)).look()
    if notice is None or notice.state != "held" or notice.machine != machine_id() or notice.start_ticks is None:
        return None
    identity = Identity(notice.pid, notice.start_ticks)
    found = find_member(identity.pid)
    return identity if found and found.identity == identity and not found.is_gone else None
