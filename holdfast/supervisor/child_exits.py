"""Learns how every descendant of a child ends, including those that another process waits for.

A pidfd keeps a process's exit status after its parent has reaped it (Linux 6.15 and later); on older kernels the status
is read from /proc while the process is a zombie. On macOS a kqueue gives it (NOTE_EXITSTATUS, for processes that this
user may signal). What libraries write about a dead worker is wrong or absent in a third of cases; the exit status is
always right. Other systems report nothing here.

A launcher names as the root cause the process that failed loudest. The exit status of every process, in the order they
ended, says which rank left first; that may be one that left with code 0 while others were at work.
"""

import os
import select
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.core.event_log import read_events
from holdfast.core.events import RankEnded, RankStarted
from holdfast.core.heartbeat import Beat, read_beat
from holdfast.core.observations import ExitStatus, FailedExits, Observation, ProcessExit
from holdfast.core.runfolder import BEATS, EVENTS
from holdfast.supervisor.processes import ProcessSample, this_system

_GET_INFO = 0xC040FF0B  # ioctl PIDFD_GET_INFO: _IOWR(0xFF, 11, 64 bytes)
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit status
_INFO_EXIT = 1 << 3
_NOTE_EXITSTATUS, _WAIT_STATUS = 0x04000000, 0xFFFF  # <sys/event.h>; what wait(2) would have given
_MOST_WATCHED, _MOST_REMEMBERED = 256, 1000
_MOST_EXITS = 40  # in the evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """How one process of the tree ended."""

    pid: int
    name: str
    at_seconds: float
    code: int | None = None  # both None when it ended too soon to be asked
    signal: int | None = None

    @property
    def is_failure(self) -> bool:
        """True for any exit but code 0; unseen exits and those requested by the parent do not count."""
        return bool(self.code) or self.signal not in (None, signal.SIGTERM, signal.SIGPIPE)

    @property
    def status(self) -> ExitStatus | None:
        """The exit status as stored; None if unknown."""
        if self.signal is not None:
            return ExitStatus(signal=signal_name(self.signal))
        return None if self.code is None else ExitStatus(code=self.code)


class ChildExits:
    """Watches the processes of one tree for their ends."""

    def __init__(self) -> None:
        self.seen: list[ChildExit] = []
        self._pids: set[int] = set()
        self._ends = _exit_queue()

    @property
    def can_see(self) -> bool:
        """True where this system tells how processes end that another process waits for."""
        return self._ends is not None

    def watch(self, processes: Iterable[ProcessSample]) -> None:
        """Watch these processes too, unless that is done already."""
        for process in processes:
            is_new = self._ends and process.pid not in self._pids and len(self._pids) < _MOST_WATCHED
            if self._ends and is_new and self._ends.add(process.pid, process.command):
                self._pids.add(process.pid)

    def collect(self, now: float) -> list[ChildExit]:
        """The ends since the last call, oldest first. Never waits."""
        found = [_child_exit(pid, name, status, now) for pid, name, status in (self._ends.take() if self._ends else ())]
        self._pids -= {one.pid for one in found}
        self.seen = (self.seen + found)[-_MOST_REMEMBERED:]
        return found

    def close(self) -> None:
        """Stop watching."""
        if self._ends:
            self._ends.close()
        self._pids.clear()


def _child_exit(pid: int, name: str, status: int | None, now: float) -> ChildExit:
    code = os.waitstatus_to_exitcode(status) if status is not None else None
    if code is not None and code < 0:
        return ChildExit(pid=pid, name=name, at_seconds=now, signal=-code)
    return ChildExit(pid=pid, name=name, at_seconds=now, code=code)


class _ExitQueue(Protocol):
    def add(self, pid: int, name: str) -> bool:
        """Watch a process; False when it is gone already."""

    def take(self) -> list[tuple[int, str, int | None]]:
        """Pid, name and wait status of those that have ended since."""

    def close(self) -> None:
        """Stop watching."""


def _exit_queue() -> _ExitQueue | None:
    if sys.platform == "linux" and this_system().blindness is None:
        return _PidfdQueue()
    if sys.platform == "darwin":
        return _KernelQueue()
    return None


class _PidfdQueue:
    """One pidfd for each process."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[int, str]] = {}  # pid and name by pidfd
        self._poll = select.poll()

    def add(self, pid: int, name: str) -> bool:
        if sys.platform != "linux":
            return False
        try:
            file = os.pidfd_open(pid)
        except OSError:  # gone already
            return False
        self._watched[file] = pid, name
        self._poll.register(file, select.POLLIN)
        return True

    def take(self) -> list[tuple[int, str, int | None]]:
        found = []
        for file, _ in self._poll.poll(0):
            pid, name = self._watched.pop(file)
            found.append((pid, name, _exit_status(file, pid)))
            self._poll.unregister(file)
            os.close(file)
        return found

    def close(self) -> None:
        for file in self._watched:
            os.close(file)
        self._watched.clear()


class _KernelQueue:
    """One kqueue for all."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        if sys.platform == "darwin":
            self._queue = select.kqueue()

    def add(self, pid: int, name: str) -> bool:
        if sys.platform != "darwin":
            return False
        wanted = select.KQ_NOTE_EXIT | _NOTE_EXITSTATUS
        try:
            self._queue.control([select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, wanted)], 0, 0)
        except OSError:  # gone already, or another user's
            return False
        self._names[pid] = name
        return True

    def take(self) -> list[tuple[int, str, int | None]]:
        if sys.platform != "darwin":
            return []
        events = self._queue.control(None, _MOST_WATCHED, 0)
        return [
            (event.ident, self._names.pop(event.ident, ""), event.data & _WAIT_STATUS)
            for event in events
            if event.fflags & select.KQ_NOTE_EXIT
        ]

    def close(self) -> None:
        if sys.platform == "darwin":
            self._queue.close()


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGKILL"; "SIG" and its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _exit_status(pidfd: int, pid: int) -> int | None:
    import fcntl

    buffer = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
        answer = _INFO.unpack_from(buffer)
        if answer[0] & _INFO_EXIT:
            return int(answer[-1])
    except OSError:
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()
    return int(fields[49]) if fields and fields[0] == b"Z" else None


def read_ranks(attempt: Path) -> dict[int, int]:
    """The rank of each process of a distributed job on this machine; empty for a process that trains alone."""
    ranks: dict[int, int] = {}
    for event in read_events(attempt / EVENTS):
        if isinstance(event, RankStarted) and event.world_size != 1 and event.pid is not None:
            ranks[event.pid] = event.rank
    return ranks


def read_positions(attempt: Path) -> dict[int, Beat]:
    """Where each process of an attempt was at its last heartbeat."""
    pages = (attempt / BEATS).glob("[0-9]*")
    return {int(page.name): beat for page in pages if (beat := read_beat(page))}


def rank_exit_code(exits: Sequence[ChildExit], attempt: Path, root_pid: int) -> int | None:
    """How the first rank to end ended: its exit code, or minus its signal; None if unknown. A launcher exits with 1,
    whatever happened to its processes.
    """
    ranks = read_ranks(attempt)
    first = ExitOrder(exits, ranks, root_pid).first
    if first is None and len(ranks) == 1:  # the others are on other machines
        first = next((end for end in exits if end.pid in ranks and end.is_failure), None)
    if first is None:
        events = read_events(attempt / EVENTS)
        return next((event.exit_code for event in events if isinstance(event, RankEnded)), None)
    return first.code if first.signal is None else -first.signal


class ExitOrder:
    """How the processes of one attempt ended, without its root, and which rank left first."""

    def __init__(
        self,
        exits: Sequence[ChildExit],
        ranks: Mapping[int, int],
        root_pid: int,
        positions: Mapping[int, Beat] | None = None,
    ):
        self._exits = [end for end in exits if end.pid != root_pid]
        self._ranks, self._positions = ranks, positions or {}
        self.first = self._first_rank()

    def observations(self) -> Iterator[Observation]:
        """Each exit that may matter, the first rank before others."""
        failed = [end for end in self._exits if end.is_failure and end is not self.first]
        shown = [*([self.first] if self.first else []), *failed]
        yield from (self._observation(end) for end in shown[:_MOST_EXITS])
        if len(shown) > _MOST_EXITS:
            yield FailedExits(count=len(shown))

    def killed(self) -> ProcessExit | None:
        """The process whose SIGKILL took the run down; None when none did, or for a data loader's worker."""
        first = self.first or next((end for end in self._exits if end.is_failure), None)
        if first is None or first.signal != signal.SIGKILL:
            return None
        killed = self._observation(first)
        return None if killed.is_loader_worker else killed

    def _observation(self, end: ChildExit) -> ProcessExit:
        beat = self._positions.get(end.pid) if end is self.first else None
        return ProcessExit(
            pid=end.pid,
            name=end.name,
            status=end.status or ExitStatus(),
            rank=self._ranks.get(end.pid),
            is_first=end is self.first,
            phase=beat.phase if beat else "",
            step=beat.step if beat else 0,
        )

    def _first_rank(self) -> ChildExit | None:
        """The rank that ended first; of several seen at the same time, the one that did not only follow another."""
        ends = [end for end in self._exits if end.pid in self._ranks and end.status]
        if len(self._ranks) < 2 or not any(end.is_failure for end in ends):
            return None
        return min(ends, key=lambda end: (end.at_seconds, _lateness(end)), default=None)


def _lateness(end: ChildExit) -> int:
    """The order of exits seen in one sample: an error or the launcher's SIGTERM only follows an earlier exit."""
    if end.signal is not None:
        return 3 if end.signal == signal.SIGTERM else 0
    return 1 if end.code == 0 else 2
