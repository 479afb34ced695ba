"""The watcher on Linux: reads threads, times, signals and waits from /proc with plain system calls.

Three processes with thirteen threads take about half a millisecond. What a thread waits for is in `waits.py`.
"""

import os
from collections.abc import Iterator, Set
from functools import lru_cache
from pathlib import Path

from holdfast.core.observations import Blindness
from holdfast.supervisor.processes import Member, ProcessReader, ProcessSample, ThreadSample, TreeSample, WaitReader
from holdfast.supervisor.waits import read_waits

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USR1_BIT, _ALARM_BIT = 1 << 9, 1 << 13
_MAX_THREADS = 512  # of one process; with more, a sample would cost more than it is worth
_PROC = Path("/proc")


class LinuxSystem:
    """What /proc shows."""

    blindness: Blindness | None = None

    def members(self) -> Iterator[Member]:
        """Every process that can be seen."""
        for folder in _PROC.glob("[0-9]*"):
            if member := self.find_member(int(folder.name)):
                yield member

    def find_member(self, pid: int) -> Member | None:
        """One process; None if it does not exist."""
        name, fields = _split_stat(_read(b"/proc/%d/stat" % pid))
        if not fields:
            return None
        return Member(
            pid=pid,
            start_ticks=int(fields[19]),
            parent_pid=int(fields[1]),
            session=int(fields[3]),
            state=fields[0].decode(),
            name=name,
        )

    def variable(self, pid: int, name: str) -> str | None:
        """A variable from the environment a process was started with; None when it has none or may not be read."""
        start = name.encode() + b"="
        for item in _read(b"/proc/%d/environ" % pid, 1 << 20).split(b"\0"):
            if item.startswith(start):
                return os.fsdecode(item[len(start) :])
        return None

    def command_line(self, pid: int) -> str:
        """The whole command of a process, its words divided by spaces; empty when it is gone."""
        return _read(b"/proc/%d/cmdline" % pid).replace(b"\0", b" ").decode(errors="replace").strip()

    def answers_usr1(self, pid: int) -> bool | None:
        """Whether a process catches SIGUSR1."""
        return bool(int(_field(_read(b"/proc/%d/status" % pid), b"SigCgt:") or b"0", 16) & _USR1_BIT)

    def boot_id(self) -> str:
        """Identifies this start of the machine."""
        return _read(b"/proc/sys/kernel/random/boot_id").decode().strip()

    def hardware_id(self) -> str:
        """Identifies the machine over its restarts, as systemd or D-Bus wrote it down once."""
        return (_read(b"/etc/machine-id") or _read(b"/var/lib/dbus/machine-id")).decode(errors="replace").strip()

    def process_reader(self) -> ProcessReader:
        """A reader for one tree."""
        return _LinuxReader()

    def wait_reader(self, attempt: Path) -> WaitReader:
        """A reader of waits; nothing has to be kept between two samples."""
        return _LinuxWaits()


class _LinuxWaits:
    def read(self, tree: TreeSample) -> TreeSample:
        return read_waits(tree)

    def forget(self) -> None:
        return None


class _LinuxReader:
    """Keeps threads that had no turn since the last sample as they were."""

    def __init__(self) -> None:
        self._seen: _Seen = {}

    def read(self, pid: int, is_detailed: bool) -> tuple[ProcessSample | None, list[int]]:
        return _read_process(pid, self._seen, is_detailed)

    def forget_others(self, tids: Set[int]) -> None:
        self._seen = {tid: seen for tid, seen in self._seen.items() if tid in tids}


_Seen = dict[int, tuple[bytes, ThreadSample, list[int]]]  # by thread: its scheduling statistics, itself, its children


def _read_process(pid: int, seen: _Seen, is_detailed: bool) -> tuple[ProcessSample | None, list[int]]:
    folder = b"/proc/%d/" % pid
    stat = _read(folder + b"stat")
    name, fields = _split_stat(stat)
    if not fields or fields[0] in b"ZX":
        return None, []
    status = _read(folder + b"status")
    caught = int(_field(status, b"SigCgt:") or b"0", 16)
    threads: list[ThreadSample] = []
    children: list[int] = []
    try:
        tids = sorted(map(int, os.listdir(folder + b"task")))[:_MAX_THREADS]  # noqa: PTH208 - three times faster
    except OSError:
        return None, []
    tids.sort(key=lambda tid: tid != pid)
    for tid in tids:
        place = folder + b"task/%d/" % tid
        used = _read(place + b"schedstat")
        if is_detailed or not used or tid not in seen or seen[tid][0] != used:
            thread = _read_thread(tid, place, used)
            if thread is None:
                continue
            seen[tid] = used, thread, [int(word) for word in _read(place + b"children").split()]
        threads.append(seen[tid][1])
        children += seen[tid][2]
    process = ProcessSample(
        pid=pid,
        parent_pid=int(fields[1]),
        start_ticks=int(fields[19]),
        command=name,
        cpu_seconds=sum(map(int, fields[11:15])) / _TICKS,
        io_bytes=sum(
            int(line.partition(b":")[2]) for line in _read(folder + b"io").splitlines() if b"yscr" not in line
        ),
        faults=int(fields[7]) + int(fields[9]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        catches_usr1=bool(caught & _USR1_BIT),
        is_other_program=_is_other_program(pid, int(fields[19]), int(fields[1]), int(fields[25])),
        has_alarm=bool(caught & _ALARM_BIT) or bool(_read(folder + b"timers", 64)),
        tracer_pid=int(_field(status, b"TracerPid:") or b"0"),
        threads=tuple(threads),
    )
    return process, children


@lru_cache(maxsize=256)
def _is_other_program(pid: int, start_ticks: int, parent_pid: int, stack: int) -> bool:
    """False for a fork of its parent, as exec moves the stack, and for a worker that multiprocessing has started."""
    _, fields = _split_stat(_read(b"/proc/%d/stat" % parent_pid))
    if fields and stack == int(fields[25]):
        return False
    return b"multiprocessing" not in _read(b"/proc/%d/cmdline" % pid)


def _read_thread(tid: int, place: bytes, schedstat: bytes) -> ThreadSample | None:
    name, fields = _split_stat(_read(place + b"stat"))
    if not fields:
        return None
    state = fields[0].decode()
    used = schedstat.split()
    if len(used) == 3:
        run_ns, wait_ns, turns = map(int, used)
    else:  # a kernel without scheduling statistics
        run_ns, wait_ns, turns = (int(fields[11]) + int(fields[12])) * 1_000_000_000 // _TICKS, 0, 0
    wchan = syscall = None
    if state != "R":
        wchan = _read(place + b"wchan").decode(errors="replace")
        words = _read(place + b"syscall").split()
        if len(words) == 9:
            syscall = (int(words[0]), *(int(word, 16) for word in words[1:]))
    return ThreadSample(
        tid=tid,
        name=name,
        state=state,
        run_ns=run_ns,
        wait_ns=wait_ns,
        turns=turns,
        wchan=wchan if wchan and wchan != "0" else "",
        syscall=syscall,
    )


def _split_stat(stat: bytes) -> tuple[str, list[bytes]]:
    """The name and the fields after it; a name may hold spaces and brackets."""
    begin, end = stat.find(b"("), stat.rfind(b")")
    return stat[begin + 1 : end].decode(errors="replace"), stat[end + 2 :].split() if end > 0 else []


def _field(status: bytes, name: bytes) -> bytes:
    at = status.find(name)
    return status[at + len(name) : status.find(b"\n", at)].strip() if at >= 0 else b""


def _read(path: bytes, most: int = 8192) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, most)
    except OSError:
        return b""
    finally:
        os.close(file)
