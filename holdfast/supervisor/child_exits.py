"""Learns how every descendant of a child ends, including those that another process waits for.

A pidfd keeps a process's exit status after its parent has reaped it (Linux 6.15 and later); on older kernels the status
is read from /proc while the process is a zombie. What libraries write about a dead worker is wrong or absent in a third
of cases; the exit status is always right. Systems other than Linux report nothing here.

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

from holdfast.core.event_log import read_events
from holdfast.core.events import RankEnded, RankStarted
from holdfast.core.heartbeat import Beat, read_beat
from holdfast.core.observations import ExitStatus, FailedExits, Observation, ProcessExit
from holdfast.core.runfolder import BEATS, EVENTS
from holdfast.supervisor.processes import ProcessSample

_GET_INFO = 0xC040FF0B  # ioctl PIDFD_GET_INFO: _IOWR(0xFF, 11, 64 bytes)
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit status
_INFO_EXIT = 1 << 3
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
        self._watched: dict[int, tuple[int, str]] = {}  # pid and name by pidfd
        self._pids: set[int] = set()
        self._poll = select.poll() if hasattr(os, "pidfd_open") and sys.platform.startswith("linux") else None

    def watch(self, processes: Iterable[ProcessSample]) -> None:
        """Watch these processes too, unless that is done already."""
        if sys.platform != "linux" or self._poll is None:
            return
        for process in processes:
            if process.pid in self._pids or len(self._watched) >= _MOST_WATCHED:
                continue
            try:
                file = os.pidfd_open(process.pid)
            except OSError:  # gone already
                continue
            self._watched[file] = process.pid, process.command
            self._pids.add(process.pid)
            self._poll.register(file, select.POLLIN)

    def collect(self, now: float) -> list[ChildExit]:
        """The ends since the last call, oldest first. Never waits."""
        found: list[ChildExit] = []
        for file, _ in self._poll.poll(0) if self._poll else ():
            pid, name = self._watched.pop(file)
            status = _exit_status(file, pid)
            self._poll.unregister(file)  # type: ignore[union-attr]  # there is one
            os.close(file)
            self._pids.discard(pid)
            code = os.waitstatus_to_exitcode(status) if status is not None else None
            is_signal = code is not None and code < 0
            found.append(
                ChildExit(
                    pid=pid,
                    name=name,
                    at_seconds=now,
                    code=None if is_signal else code,
                    signal=-code if code is not None and is_signal else None,
                )
            )
        self.seen = (self.seen + found)[-_MOST_REMEMBERED:]
        return found

    def close(self) -> None:
        """Close the pidfd of every process."""
        for file in self._watched:
            os.close(file)
        self._watched.clear()
        self._pids.clear()


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
