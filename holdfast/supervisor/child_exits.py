"""Learns how every descendant of a child ends, also those that somebody else waits for.

A pidfd keeps a process's exit status after its parent has reaped it (Linux 6.15 and later); before that, the status can
be read from /proc while the process is a zombie. What libraries write about a dead worker is wrong or absent in a third
of cases; this is not. Elsewhere than on Linux nothing is learnt.
"""

import os
import select
import signal
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.supervisor.processes import ProcessSample

_GET_INFO = 0xC040FF0B  # ioctl PIDFD_GET_INFO: _IOWR(0xFF, 11, 64 bytes)
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit status
_INFO_EXIT = 1 << 3
_MOST_WATCHED, _MOST_REMEMBERED = 256, 1000


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
        """True for any end but code 0; ends that nobody saw and those its own parent asks for do not count."""
        return bool(self.code) or self.signal not in (None, signal.SIGTERM, signal.SIGPIPE)

    @property
    def words(self) -> str:
        """The end in words: "killed by SIGSEGV", "exit code 1"."""
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return "no exit status was seen" if self.code is None else f"exit code {self.code}"


class ChildExits:
    """Watches the processes of one tree for their ends."""

    def __init__(self) -> None:
        self.seen: list[ChildExit] = []
        self._watched: dict[int, tuple[int, str]] = {}  # pid and name by pidfd
        self._pids: set[int] = set()
        self._poll = select.poll() if hasattr(os, "pidfd_open") and sys.platform.startswith("linux") else None

    def watch(self, processes: Iterable[ProcessSample]) -> None:
        """Watch these processes too, unless that is done already."""
        if self._poll is None:
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
        """Let go of every process."""
        for file in self._watched:
            os.close(file)
        self._watched.clear()
        self._pids.clear()


def signal_name(number: int) -> str:
    """The name of a signal; its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
