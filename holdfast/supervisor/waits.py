"""Says what the threads of a quiet tree wait for, in words, and who could end the wait.

A wait is ended from outside (a byte from the network, a timer, a disk) or only from inside: by another thread of the
process, or by processes of the same tree. Where every wait is of the second kind nothing will ever move again; that
conclusion is drawn in `supervisor.verdict`, this module only looks.
"""

import dataclasses
import os
import re
import stat
import struct
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample, Wait, WaitKind
from holdfast.supervisor.sockets import CONNECTING, LISTENING, Socket, read_sockets
from holdfast.supervisor.syscalls import call_name

_FUTEX_WAITS = {0, 6, 9, 11, 13}  # WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
_FUTEX_PRIVATE, _FUTEX_COMMANDS = 128, 0x7F
_SET_LOCK_AND_WAIT = {7, 38}  # F_SETLKW, F_OFD_SETLKW
_FROZEN = ("__refrigerator", "get_signal", "do_freezer_trap")
# What a set of files is waited for as: the first kind of these that is among them.
_ORDER: tuple[WaitKind, ...] = ("net", "input", "kernel", "tree", "timed", "listen", "lock")
_ON_FILE = {
    *("read", "write", "readv", "writev", "pread64", "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg"),
    *("accept", "accept4", "connect", "ioctl"),
}
_PYTHON_FILE = re.compile(r"/(?:lib)?python3[^/]*$")
_FOR_A_SIGNAL = {"pause", "rt_sigtimedwait", "rt_sigsuspend"}


def describe_waits(tree: TreeSample) -> TreeSample:
    """The same sample with what each of its threads waits for."""
    looker = _Looker(tree)
    waits = {thread.tid: looker.wait_of(thread, process) for process in tree.processes for thread in process.threads}
    return dataclasses.replace(tree, waits=waits)


class _Looker:
    """Answers for one sample; what is asked of the system is asked once."""

    def __init__(self, tree: TreeSample):
        self._tree = tree
        self._pids = [process.pid for process in tree.processes]
        self._held: dict[str, list[tuple[int, bool]]] | None = None
        self._sockets: dict[int, Socket] | None = None

    def wait_of(self, thread: ThreadSample, process: ProcessSample) -> Wait:
        """Look at one thread."""
        if thread.state == "R":
            return Wait(kind="run", words="runs")
        if thread.state == "t":
            return Wait(kind="traced", words="is held by a debugger")
        if thread.state == "T" or thread.wchan in _FROZEN:
            return Wait(kind="stopped", words="is stopped" if thread.state == "T" else "is frozen by its control group")
        if thread.state == "D":
            return Wait(kind="kernel", words=f"waits in the kernel ({thread.wchan or 'unknown'})")
        if thread.syscall is None:
            return Wait(kind="timed", words=f"waits ({thread.wchan or 'unknown'})")
        return self._wait_in_call(thread.syscall, thread, process)

    def _wait_in_call(self, syscall: tuple[int, ...], thread: ThreadSample, process: ProcessSample) -> Wait:
        name, arguments, pid = call_name(syscall[0]), syscall[1:], process.pid
        if name == "futex":
            return self._for_lock(arguments, process)
        if name in ("clock_nanosleep", "nanosleep"):
            return Wait(kind="sleep", words="sleeps")
        if name in ("wait4", "waitid"):
            return self._for_children(pid)
        if name in _ON_FILE:
            return self._on_file(pid, arguments[0] & 0xFFFFFFFF, name)
        if name in ("poll", "ppoll"):
            has_end = arguments[2] != 0 if name == "ppoll" else _signed(arguments[2]) >= 0
            return self._on_files(pid, _polled(pid, arguments[0], arguments[1]), has_end)
        if name in ("select", "pselect6"):
            return self._on_files(pid, _selected(pid, arguments), arguments[4] != 0)
        if name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
            has_end = arguments[3] != 0 if name == "epoll_pwait2" else _signed(arguments[3]) >= 0
            return self._on_files(pid, _watched(pid, arguments[0]), has_end)
        if name in ("open", "openat", "openat2"):
            path = _text_at(pid, arguments[0] if name == "open" else arguments[1])
            return Wait(kind="input", words=f"waits to open {path}{_fifo_note(path)}")
        if name == "flock" or (name == "fcntl" and arguments[1] in _SET_LOCK_AND_WAIT):
            return self._for_file_lock(pid, arguments[0])
        if name in _FOR_A_SIGNAL:
            return Wait(kind="input", words="waits for a signal")
        if name == "restart_syscall":  # a wait with an end, entered again after somebody looked
            return Wait(kind="timed", words=f"waits for a limited time ({thread.wchan})")
        return Wait(kind="kernel", words=f"waits in {name} ({thread.wchan or 'unknown'})")

    def _for_lock(self, arguments: tuple[int, ...], process: ProcessSample) -> Wait:
        address, operation, pid = arguments[0], arguments[1], process.pid
        if operation & _FUTEX_COMMANDS not in _FUTEX_WAITS or arguments[3]:
            if any(begin <= address < end for begin, end in _interpreter_data(pid, process.start_ticks)):
                # Python asks for its lock again every 5 ms, for as long as another of its threads has it.
                return Wait(kind="interpreter", words="waits for the interpreter lock", wakers=frozenset({pid}))
            return Wait(kind="timed", words="waits for a lock, for a limited time")
        if operation & _FUTEX_PRIVATE:
            return Wait(kind="lock", words="waits for a lock", wakers=frozenset({pid}))
        return Wait(kind="lock", words="waits for a lock shared between processes", wakers=frozenset(self._pids))

    def _for_children(self, pid: int) -> Wait:
        children = frozenset(process.pid for process in self._tree.processes if process.parent_pid == pid)
        return Wait(kind="tree", words="waits for its child", wakers=children)

    def _for_file_lock(self, pid: int, file: int) -> Wait:
        path = _target(pid, file)
        holders = _lock_holders(Path(f"/proc/{pid}/fd/{file}")) & frozenset(self._pids)
        words = f"waits for the lock on {path}"
        if holders:
            return Wait(kind="tree", words=f"{words}, held by process {min(holders)}", wakers=holders)
        return Wait(kind="input", words=words)

    def _on_files(self, pid: int, files: Iterable[int], has_end: bool) -> Wait:
        waits = [self._on_file(pid, file, "poll") for file in files]
        if not waits:
            return Wait(kind="timed" if has_end else "input", words="waits for files that could not be read")
        first = min(waits, key=lambda wait: _ORDER.index(wait.kind))
        same = [wait for wait in waits if wait.kind == first.kind]
        if first.kind == "net":  # a byte from any of them is news
            return min(same, key=lambda wait: wait.silent_seconds or 0.0)
        if first.kind == "tree":
            return dataclasses.replace(first, wakers=frozenset().union(*(wait.wakers for wait in same)))
        if first.kind == "lock" and has_end:
            return Wait(kind="timed", words="waits for a limited time")
        return first

    def _on_file(self, pid: int, file: int, call: str) -> Wait:
        target = _target(pid, file)
        if target.startswith("socket:["):
            return self._on_socket(pid, int(target[8:-1]), target, call)
        if target.startswith("pipe:["):
            return self._on_pipe(pid, target, wants_writer=not call.startswith("write"))
        if target.startswith("anon_inode:"):
            return self._on_kernel_object(pid, file, target)
        if _is_fifo(target):
            wait = self._on_pipe(pid, target, wants_writer=not call.startswith("write"))
            return wait if wait.kind == "tree" else Wait(kind="input", words=f"waits for FIFO {target}")
        if target.startswith(("/dev/pts/", "/dev/tty")):
            return Wait(kind="input", words=f"waits for the terminal {target}")
        return Wait(kind="kernel", words=f"waits in {call} on {target or f'file {file}'}")

    def _on_kernel_object(self, pid: int, file: int, target: str) -> Wait:
        if "eventfd" in target:
            return Wait(kind="lock", words="waits for another of its threads", wakers=frozenset({pid}))
        if "pidfd" in target:
            return Wait(kind="tree", words="waits for a process to end", wakers=_pid_of_pidfd(pid, file))
        if "eventpoll" in target:
            return self._on_files(pid, _watched(pid, file), has_end=False)
        if "timerfd" in target:
            return Wait(kind="timed", words="waits for a timer")
        return Wait(kind="input", words=f"waits for {target.removeprefix('anon_inode:')}")

    def _on_pipe(self, pid: int, target: str, wants_writer: bool) -> Wait:
        ends = self._holders(target)
        others = frozenset(holder for holder, writes in ends if writes == wants_writer and holder != pid)
        if others:
            return Wait(kind="tree", words=f"waits for {_named(others)}", wakers=others)
        if any(writes == wants_writer for _, writes in ends):
            return Wait(kind="lock", words="waits for another of its threads", wakers=frozenset({pid}))
        return Wait(kind="input", words=f"waits for a pipe from outside ({target})")

    def _on_socket(self, pid: int, inode: int, target: str, call: str) -> Wait:
        if self._sockets is None:
            self._sockets = read_sockets()
        found = self._sockets.get(inode)
        if found is None:
            return Wait(kind="input", words=f"waits for a socket ({target})")
        if found.state == LISTENING:
            return Wait(kind="listen", words=f"waits for a connection at {found.local or target}")
        peer = self._peer_of(found)
        others = frozenset(holder for holder, _ in self._holders(f"socket:[{peer}]")) if peer else frozenset()
        if others - {pid}:
            return Wait(kind="tree", words=f"waits for {_named(others - {pid})}", wakers=others - {pid})
        if others:
            return Wait(kind="lock", words="waits for another of its threads", wakers=others)
        if not found.remote:
            return Wait(kind="input", words=f"waits for a local socket {found.local}".rstrip())
        doing = "connects to" if found.state == CONNECTING or call == "connect" else "waits for"
        return Wait(kind="net", words=f"{doing} {found.remote}", silent_seconds=found.silent_seconds)

    def _peer_of(self, found: Socket) -> int:
        if found.peer_inode or not found.remote:
            return found.peer_inode
        pair = found.remote, found.local
        return next((one.inode for one in (self._sockets or {}).values() if (one.local, one.remote) == pair), 0)

    def _holders(self, target: str) -> list[tuple[int, bool]]:
        """The processes of the tree that hold a pipe or socket, and whether they may write to it."""
        if self._held is None:
            self._held = {}
            for pid in self._pids:
                for name, writes in _open_files(pid):
                    self._held.setdefault(name, []).append((pid, writes))
        return self._held.get(target, [])


@lru_cache(maxsize=64)
def _interpreter_data(pid: int, start_ticks: int) -> tuple[tuple[int, int], ...]:
    """Where a Python process keeps the interpreter's own data, the interpreter lock among them."""
    found: list[tuple[int, int]] = []
    end_of_python = 0
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        words = line.split(maxsplit=5)
        begin, end = (int(word, 16) for word in words[0].split("-"))
        is_python = len(words) > 5 and _PYTHON_FILE.search(words[5]) is not None
        # What is zero at the start has no file behind it, and follows what has.
        if words[1].startswith("rw") and (is_python or (len(words) < 6 and begin == end_of_python)):
            found.append((begin, end))
        if is_python or begin == end_of_python:
            end_of_python = end
    return tuple(found)


def _named(pids: frozenset[int]) -> str:
    numbers = sorted(pids)
    return f"process {numbers[0]}" if len(numbers) == 1 else f"processes {', '.join(map(str, numbers[:6]))}"


def _target(pid: int, file: int) -> str:
    try:
        return os.readlink(b"/proc/%d/fd/%d" % (pid, file)).decode(errors="replace")  # noqa: PTH115 - hundreds a look
    except OSError:
        return ""


def _open_files(pid: int) -> list[tuple[str, bool]]:
    """Pipes, FIFOs and sockets that a process holds, and whether it may write to them."""
    found = []
    folder = f"/proc/{pid}/fd/"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(folder + name)  # noqa: PTH115
            if target.startswith(("pipe:", "socket:")) or (target.startswith("/") and _is_fifo(target)):
                found.append((target, bool(os.lstat(folder + name).st_mode & stat.S_IWUSR)))
        except OSError:
            continue
    return found


def _is_fifo(path: str) -> bool:
    try:
        return path.startswith("/") and stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def _fifo_note(path: str) -> str:
    return ", a FIFO that nobody has opened at the other end" if _is_fifo(path) else ""


def _memory(pid: int, address: int, count: int) -> bytes:
    try:
        file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(file, count, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(file)


def _text_at(pid: int, address: int) -> str:
    page = 4096 - address % 4096  # a path may end just before memory that is not there
    return (_memory(pid, address, 4096) or _memory(pid, address, page)).partition(b"\0")[0].decode(errors="replace")


def _polled(pid: int, address: int, count: int) -> list[int]:
    raw = _memory(pid, address, 8 * min(count, 1024))
    return [file for file, _, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8]) if file >= 0]


def _selected(pid: int, arguments: tuple[int, ...]) -> list[int]:
    count = min(arguments[0], 1024)
    found: set[int] = set()
    for address in arguments[1:4]:
        bits = int.from_bytes(_memory(pid, address, (count + 63) // 64 * 8), "little") if address else 0
        found |= {file for file in range(count) if bits >> file & 1}
    return sorted(found)


def _watched(pid: int, epoll: int) -> list[int]:
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{epoll}").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


def _pid_of_pidfd(pid: int, file: int) -> frozenset[int]:
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{file}").read_text(encoding="ascii").splitlines()
    except OSError:
        return frozenset()
    return frozenset(int(line.split()[1]) for line in lines if line.startswith("Pid:") and int(line.split()[1]) > 0)


def _lock_holders(path: Path) -> frozenset[int]:
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return frozenset()
    rows = (line.split() for line in lines if "->" not in line)
    return frozenset(int(row[4]) for row in rows if row[5].rpartition(":")[2] == str(inode) and int(row[4]) > 0)


def _signed(number: int) -> int:
    """The lower half of an argument as a signed number: -1 is no limit."""
    return struct.unpack("=i", struct.pack("=I", number & 0xFFFFFFFF))[0]  # type: ignore[no-any-return]
