"""A pretended macOS on Linux: libproc and `sample` answer for real processes in the formats of macOS; /proc is hidden.

The structures are packed as <sys/proc_info.h> lays them out, so what reads them is tested on real bytes. `/proc` raises
FileNotFoundError for all code but this file, psutil and the standard library's own start of processes.
"""

import contextlib
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.supervisor import dumps, libproc, mac_waits, macos, processes

_TICKS = os.sysconf("SC_CLK_TCK")
_STATES = {"R": 1, "S": 3, "D": 4, "T": 2, "t": 2, "I": 3}
_MAY_READ_PROC = ("psutil", "tests/darwin", "subprocess.py")
_hidden = [False]


def _guard(event: str, arguments: tuple) -> None:
    if _hidden[0] and event in ("open", "os.listdir", "os.scandir") and arguments:
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else ""
        if path.startswith(("/proc", "/sys")):
            caller = sys._getframe(1)
            while caller and "pathlib" in caller.f_code.co_filename:
                caller = caller.f_back
            if caller and not any(name in caller.f_code.co_filename for name in _MAY_READ_PROC):
                raise FileNotFoundError(2, "hidden: macOS has none", path)


sys.addaudithook(_guard)


class PretendedLibProc(libproc.LibProc):
    """Answers with the bytes that macOS would give for a process of this Linux."""

    def __init__(self) -> None:
        self._ns_of_tick = 125 / 3

    def info(self, pid: int, flavor: int, argument: int, size: int) -> bytes:
        stat = _stat(pid)
        if stat is None:
            return b""
        if flavor == 3:
            born = _boot_seconds() + int(stat[19]) / _TICKS
            state = 5 if stat[0] in "ZX" else 4 if stat[0] in "Tt" else 2
            name = Path(f"/proc/{pid}/comm").read_bytes().strip()[:15]
            return libproc._BSD.pack(
                2 if stat[0] == "t" else 0, state, 0, pid, int(stat[1]), *[0] * 7, name, name, *[0] * 5, 0,
                int(born), int(born % 1 * 1e6),
            )  # fmt: skip
        if flavor == 4:
            return libproc._TASK.pack(*[0] * 6, 0, int(stat[7]), *[0] * 10)
        tasks = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
        if flavor == 28:
            return struct.pack(f"={len(tasks)}Q", *tasks)
        if flavor == 15:
            with contextlib.suppress(OSError):
                fields = _stat_of(Path(f"/proc/{pid}/task/{argument}/stat"))
                ran = int(Path(f"/proc/{pid}/task/{argument}/schedstat").read_text().split()[0])
                name = Path(f"/proc/{pid}/task/{argument}/comm").read_bytes().strip()
                name = b"" if argument == pid else name
                return libproc._THREAD.pack(ran // 1000 * 1000, 0, 0, 0, _STATES.get(fields[0], 3), *[0] * 5, name)
        return b""

    def usage_bytes(self, pid: int, size: int) -> bytes:
        try:
            ran = sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return b""
        used = [0] * 35
        used[libproc._USER - 1] = used[libproc._RUNNABLE - 1] = round(ran / self._ns_of_tick)
        used[libproc._FOOTPRINT - 1] = pages * 4096
        return libproc._USAGE.pack(b"", *used)

    def file_info(self, pid: int, file: int, flavor: int, size: int) -> bytes:
        return b""

    def list_bytes(self, kind: int, argument: int, size: int) -> bytes:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        if kind == 6:
            pids = [pid for pid in pids if (stat := _stat(pid)) and int(stat[1]) == argument]
        return struct.pack(f"={len(pids)}i", *pids)

    def pipes(self, pid: int) -> list[tuple[int, int]]:
        """A pipe of Linux has one number for both ends; of macOS, two."""
        ends = []
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target, mode = os.readlink(f"/proc/{pid}/fd/{name}"), os.lstat(f"/proc/{pid}/fd/{name}").st_mode
                    if target.startswith("pipe:["):
                        number, writes = int(target[6:-1]) * 2, bool(mode & 0o200)
                        ends.append((number + writes, number + (not writes)))
        return ends


# The native stack of CPython 3.11 above each kind of wait, outermost first, and what macOS calls the system call.
_PYTHON = ("start", "Py_BytesMain", "Py_RunMain", "PyEval_EvalCode", "_PyEval_EvalFrameDefault")
_LOCK = ("lock_PyThread_acquire_lock", "acquire_timed", "PyThread_acquire_lock_timed", "_pthread_cond_wait")
_BELOW = {
    "futex": (*_LOCK, "__psynch_cvwait"),
    "wait4": ("os_waitpid", "__wait4"),
    "waitid": ("os_waitid", "__wait4"),
    "clock_nanosleep": ("time_sleep", "pysleep", "nanosleep", "__semwait_signal"),
    "epoll_wait": ("select_kqueue_control", "kevent"),
    "poll": ("select_poll_poll", "poll"),
    "recvfrom": ("sock_recv", "__recvfrom"),
    "read": ("os_read", "read"),
    "flock": ("fcntl_flock", "flock"),
    "openat": ("os_open", "__open"),
    "pselect6": ("select_select", "__select"),
}
_NUMBERS = {0: "read", 7: "poll", 45: "recvfrom", 61: "wait4", 73: "flock", 202: "futex", 230: "clock_nanosleep",
            232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 281: "epoll_wait"}  # fmt: skip


def sample_text(pid: int) -> str:
    """What `sample` would print of a process of this Linux: each thread in the call it waits in."""
    lines = [f"Analysis of sampling Python (pid {pid}) every 10 milliseconds", "Call graph:"]
    for tid in sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")):
        try:
            number = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0]
            name = Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()
        except (OSError, IndexError):
            continue
        call = _NUMBERS.get(int(number), number) if number.lstrip("-").isdigit() else number
        lines += thread_lines(tid, _BELOW.get(call, (call,)), is_main=tid == pid, name=name)
    return "\n".join([*lines, "", "Total number in stack (recursive counted multiple, when >=5):", ""])


def thread_lines(tid: int, below: tuple[str, ...], *, is_main: bool, name: str = "", module: str = "") -> list[str]:
    """One thread in the call tree of `sample`."""
    head = "   DispatchQueue_1: com.apple.main-thread  (serial)" if is_main else f": {name}" * bool(name)
    frames = (*(_PYTHON if is_main else ("thread_start", "_pthread_start", "pythread_wrapper")), *below)
    return [f"    86 Thread_{tid}{head}"] + [
        f"    +{'  ' * depth} 86 {frame}  (in {module or 'Python'}) + 8  [0x18a7c2b98]"
        for depth, frame in enumerate(frames)
    ]


class FakeKernelQueue:
    """select.kqueue, as far as it is used: ends of processes, with their wait status."""

    def __init__(self) -> None:
        self._watched: dict[int, int] = {}

    def control(self, changes, most, timeout=None):
        for change in changes or ():
            self._watched[change.ident] = os.pidfd_open(change.ident)
        found = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while most and not found:
            for pid in list(self._watched):
                stat = _stat(pid)
                if stat is None or stat[0] in "ZX":
                    status = int(stat[49]) if stat else 0
                    os.close(self._watched.pop(pid))
                    found.append(FakeKernelEvent(pid, -5, 0, 0x80000000, status))
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(0.01)
        return found

    def close(self) -> None:
        for file in self._watched.values():
            os.close(file)


class FakeKernelEvent:
    def __init__(self, ident, filter=0, flags=0, fflags=0, data=0, udata=0):  # noqa: A002
        self.ident, self.filter, self.flags, self.fflags, self.data = ident, filter, flags, fflags, data


@contextlib.contextmanager
def pretended_mac(monkeypatch) -> Iterator[None]:
    """Everything in this process believes that it runs on macOS."""
    import fcntl
    import select
    import shutil  # noqa: F401  (its start reads sys.platform)

    import psutil  # before the platform changes

    assert psutil.Process
    with monkeypatch.context() as patch:
        for name, value in (("KQ_FILTER_PROC", -5), ("KQ_EV_ADD", 1), ("KQ_NOTE_EXIT", 0x80000000)):
            patch.setattr(select, name, value, raising=False)
        patch.setattr(select, "kqueue", FakeKernelQueue, raising=False)
        patch.setattr(select, "kevent", FakeKernelEvent, raising=False)
        patch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)  # Linux refuses it, as some file systems of macOS do
        patch.setattr(macos, "_load_libproc", PretendedLibProc)
        patch.setattr(macos, "read_sysctl", {"kern.bootsessionuuid": "6B1F2C7E-0000-4000-8000-00000000B007"}.get)
        patch.setattr(mac_waits, "run_sample", _sample)
        patch.setattr(dumps, "run_sample", _sample)
        patch.setattr(sys, "platform", "darwin")
        processes._system_of.cache_clear()
        _hidden[0] = True
        try:
            yield
        finally:
            _hidden[0] = False
            processes._system_of.cache_clear()


def _sample(pid: int, seconds: float = 10.0) -> str:
    try:
        return sample_text(pid)
    except OSError:
        return ""


def _boot_seconds() -> float:
    return next(float(line.split()[1]) for line in open("/proc/stat") if line.startswith("btime"))


def _stat(pid: int) -> list[str] | None:
    try:
        return _stat_of(Path(f"/proc/{pid}/stat"))
    except OSError:
        return None


def _stat_of(path: Path) -> list[str]:
    return path.read_text(errors="replace").rpartition(")")[2].split()
