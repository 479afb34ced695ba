"""Asks libproc of macOS about processes: identity, threads, times, disk, footprint, pipes.

The layouts are those of <sys/proc_info.h> and <sys/resource.h> (xnu, since 10.9). All of it is allowed for the user's
own processes without privileges. `PROC_PIDLISTTHREADIDS` is in xnu's private header; where it is refused, the public
`PROC_PIDLISTTHREADS` gives the same threads without the numbers that `sample` prints.
"""

import ctypes
import struct
from dataclasses import dataclass

_PID_ALL, _PPID_ONLY = 1, 6
_TASK_INFO, _THREAD_INFO, _LIST_THREADS, _BSD_INFO = 4, 5, 6, 3
_LIST_FILES, _THREAD_ID_INFO, _LIST_THREAD_IDS = 1, 15, 28
_PIPE_INFO, _PIPE_TYPE = 6, 6
_RUSAGE_V4 = 4

_BSD = struct.Struct("=12I16s32s5IiQQ")  # struct proc_bsdinfo
_THREAD = struct.Struct("=QQ8i64s")  # struct proc_threadinfo
_TASK = struct.Struct("=6Q12i")  # struct proc_taskinfo
_USAGE = struct.Struct("=16s35Q")  # struct rusage_info_v4
_FILE = struct.Struct("=iI")  # struct proc_fdinfo
_PIPE_BYTES, _PIPE_HANDLES = 184, struct.Struct("=QQ")  # struct pipe_fdinfo, and its two handles at 160
# Where the fields that are read are in it.
_USER, _SYSTEM, _PAGE_INS, _RESIDENT, _FOOTPRINT, _CHILD_USER, _CHILD_SYSTEM, _READ, _WRITTEN, _RUNNABLE = (
    *(1, 2, 5, 7, 8, 11, 12, 17, 18, 35),
)

_STOPPED, _ZOMBIE = 4, 5  # SSTOP and SZOMB of <sys/proc.h>
_IS_TRACED = 2  # PROC_FLAG_TRACED
# TH_STATE_* of <mach/thread_info.h>, as /proc writes them: running, stopped, waiting, uninterruptible, halted.
_STATES = {1: "R", 2: "T", 3: "S", 4: "D", 5: "T"}
_MOST_THREADS, _MOST_FILES, _MOST_PROCESSES = 512, 1024, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class BsdProcess:
    """A process as the BSD part of the kernel knows it."""

    pid: int
    parent_pid: int
    start_ticks: int  # hundredths of a second since 1970; fixed at the fork
    name: str
    is_stopped: bool
    is_zombie: bool
    is_traced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What a process has used since it began."""

    cpu_ns: int
    child_cpu_ns: int  # of children it has waited for
    runnable_ns: int  # it ran or wanted to run
    io_bytes: int  # of disks
    page_ins: int
    faults: int
    footprint_bytes: int  # what macOS counts as its memory, that of the GPU included


@dataclass(frozen=True, slots=True, kw_only=True)
class MachThread:
    """A thread as the Mach part of the kernel knows it."""

    tid: int
    name: str
    state: str  # as /proc writes it
    run_ns: int


class LibProc:
    """The calls; every one answers None or nothing for a process that is gone or not ours."""

    def __init__(self) -> None:
        library = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
        self._pid_info, self._pid_usage = library.proc_pidinfo, library.proc_pid_rusage
        self._file_info, self._list = library.proc_pidfdinfo, library.proc_listpids
        self._pid_info.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int]
        numer, denom = _timebase()
        self._ns_of_tick = numer / denom  # 125/3 on Apple silicon

    def pids(self) -> list[int]:
        """Every process."""
        return self._listed(_PID_ALL, 0)

    def children(self, pid: int) -> list[int]:
        """The children of a process."""
        return self._listed(_PPID_ONLY, pid)

    def process(self, pid: int) -> BsdProcess | None:
        """One process."""
        raw = self.info(pid, _BSD_INFO, 0, _BSD.size)
        if len(raw) < _BSD.size:
            return None
        found = _BSD.unpack(raw)
        status = found[1]
        return BsdProcess(
            pid=found[3],
            parent_pid=found[4],
            start_ticks=found[20] * 100 + found[21] // 10_000,
            name=_text(found[13]) or _text(found[12]),
            is_stopped=status == _STOPPED,
            is_zombie=status == _ZOMBIE,
            is_traced=bool(found[0] & _IS_TRACED),
        )

    def usage(self, pid: int) -> ProcessUsage | None:
        """What it has used."""
        raw = self.usage_bytes(pid, _USAGE.size)
        if not raw:
            return None
        used, faults = _USAGE.unpack(raw), 0
        task = self.info(pid, _TASK_INFO, 0, _TASK.size)
        if len(task) == _TASK.size:
            faults = _TASK.unpack(task)[7]
        return ProcessUsage(
            cpu_ns=self._ns(used[_USER] + used[_SYSTEM]),
            child_cpu_ns=self._ns(used[_CHILD_USER] + used[_CHILD_SYSTEM]),
            runnable_ns=self._ns(used[_RUNNABLE]),
            io_bytes=used[_READ] + used[_WRITTEN],
            page_ins=used[_PAGE_INS],
            faults=faults,
            footprint_bytes=used[_FOOTPRINT] or used[_RESIDENT],
        )

    def threads(self, pid: int) -> list[MachThread]:
        """Its threads, the main thread first."""
        for listing, asking in ((_LIST_THREAD_IDS, _THREAD_ID_INFO), (_LIST_THREADS, _THREAD_INFO)):
            raw = self.info(pid, listing, 0, 8 * _MOST_THREADS)
            names = struct.unpack(f"={len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
            if found := [thread for name in names if (thread := self._thread(pid, asking, name))]:
                # Numbers only grow, and the main thread is the first of its process.
                return sorted(found, key=lambda one: one.tid) if listing == _LIST_THREAD_IDS else found
        return []

    def pipes(self, pid: int) -> list[tuple[int, int]]:
        """The kernel's numbers of each of its pipe ends and of the end at the other side."""
        raw = self.info(pid, _LIST_FILES, 0, _FILE.size * _MOST_FILES)
        files = [file for file, kind in _FILE.iter_unpack(raw[: len(raw) // 8 * 8]) if kind == _PIPE_TYPE]
        ends = [self.file_info(pid, file, _PIPE_INFO, _PIPE_BYTES) for file in files]
        return [_PIPE_HANDLES.unpack_from(end, 160) for end in ends if len(end) >= _PIPE_BYTES]

    def info(self, pid: int, flavor: int, argument: int, size: int) -> bytes:
        """The bytes of `proc_pidinfo`; empty when it is refused."""
        buffer = ctypes.create_string_buffer(size)
        length = self._pid_info(pid, flavor, argument, buffer, size)
        return buffer.raw[:length] if length > 0 else b""

    def usage_bytes(self, pid: int, size: int) -> bytes:
        """The bytes of `proc_pid_rusage`; empty when it is refused."""
        buffer = ctypes.create_string_buffer(size)
        return buffer.raw if self._pid_usage(pid, _RUSAGE_V4, buffer) == 0 else b""

    def file_info(self, pid: int, file: int, flavor: int, size: int) -> bytes:
        """The bytes of `proc_pidfdinfo`; empty when it is refused."""
        buffer = ctypes.create_string_buffer(size)
        length = self._file_info(pid, file, flavor, buffer, size)
        return buffer.raw[:length] if length > 0 else b""

    def list_bytes(self, kind: int, argument: int, size: int) -> bytes:
        """The bytes of `proc_listpids`."""
        buffer = ctypes.create_string_buffer(size)
        length = self._list(kind, argument, buffer, size)
        return buffer.raw[:length] if length > 0 else b""

    def _ns(self, ticks: int) -> int:
        return round(ticks * self._ns_of_tick)

    def _listed(self, kind: int, argument: int) -> list[int]:
        raw = self.list_bytes(kind, argument, 4 * _MOST_PROCESSES)
        return [pid for (pid,) in struct.iter_unpack("=i", raw[: len(raw) // 4 * 4]) if pid > 0]

    def _thread(self, pid: int, flavor: int, name: int) -> MachThread | None:
        raw = self.info(pid, flavor, name, _THREAD.size)
        if len(raw) < _THREAD.size:
            return None
        found = _THREAD.unpack(raw)
        return MachThread(tid=name, name=_text(found[10]), state=_STATES.get(found[4], "S"), run_ns=found[0] + found[1])


def _timebase() -> tuple[int, int]:
    """How many nanoseconds a tick of the kernel's clock has, as a fraction."""
    ratio = (ctypes.c_uint32 * 2)(1, 1)
    ctypes.CDLL(None).mach_timebase_info(ratio)
    return ratio[0] or 1, ratio[1] or 1


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")
