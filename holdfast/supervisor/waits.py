"""Finds out what the threads of a quiet tree wait for, and what could end each wait.

A wait ends externally (a byte from the network, a timer, a disk) or only internally: by another thread of the process,
or by processes of the same tree. Where every wait is of the second kind nothing will ever move again;
`supervisor.verdict` draws that conclusion.
"""

import dataclasses
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.observations import Wait, WaitKind, WaitTarget
from holdfast.supervisor.proc_files import (
    absolute_path,
    interpreter_data,
    lock_holders,
    open_files,
    polled_files,
    process_of_pidfd,
    selected_files,
    target_of,
    text_at,
    watched_files,
)
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample
from holdfast.supervisor.sockets import CONNECTING, LISTENING, Socket, read_sockets
from holdfast.supervisor.syscalls import call_name

_FUTEX_WAITS = {0, 6, 9, 11, 13}  # WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
_FUTEX_PRIVATE, _FUTEX_COMMANDS = 128, 0x7F
_SET_LOCK_AND_WAIT = {7, 38}  # F_SETLKW, F_OFD_SETLKW
_FROZEN = ("__refrigerator", "get_signal", "do_freezer_trap")
# What a set of files is waited for as: the first kind of these that is among them.
_ORDER: tuple[WaitKind, ...] = ("net", "input", "kernel", "tree", "device", "timed", "listen", "lock")
_ON_FILE = {
    *("read", "write", "readv", "writev", "pread64", "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg"),
    *("accept", "accept4", "connect", "ioctl"),
}
_POLITE = {
    *("futex", "nanosleep", "clock_nanosleep", "poll", "ppoll", "select", "pselect6"),
    *("epoll_wait", "epoll_pwait", "epoll_pwait2"),
}
_FOR_A_SIGNAL = {"pause", "rt_sigtimedwait", "rt_sigsuspend"}


def read_waits(tree: TreeSample) -> TreeSample:
    """The same sample with what each of its threads waits for."""
    reader = _WaitReader(tree)
    waits = {thread.tid: reader.wait_of(thread, process) for process in tree.processes for thread in process.threads}
    return dataclasses.replace(tree, waits=waits)


class _WaitReader:
    """Answers for one sample; what is asked of the system is asked once."""

    def __init__(self, tree: TreeSample):
        self._tree = tree
        self._pids = [process.pid for process in tree.processes]
        self._held: dict[str, list[tuple[int, bool]]] | None = None
        self._sockets: dict[int, Socket] | None = None

    def wait_of(self, thread: ThreadSample, process: ProcessSample) -> Wait:
        """What one thread waits for."""
        if thread.state == "R":
            return Wait(kind="run", target=WaitTarget.NOTHING)
        if thread.state == "t":
            return Wait(kind="traced", target=WaitTarget.DEBUGGER)
        if thread.state == "T":
            return Wait(kind="stopped", target=WaitTarget.STOP_SIGNAL)
        if _is_frozen(thread):
            return Wait(kind="stopped", target=WaitTarget.FROZEN_CGROUP)
        if thread.state == "D":
            return Wait(kind="kernel", target=WaitTarget.KERNEL, name=thread.wchan)
        if thread.syscall is None:
            return Wait(kind="timed", target=WaitTarget.UNKNOWN, name=thread.wchan)
        return self._wait_in_call(thread.syscall, thread, process)

    def _wait_in_call(self, syscall: tuple[int, ...], thread: ThreadSample, process: ProcessSample) -> Wait:
        name, arguments, pid = call_name(syscall[0]), syscall[1:], process.pid
        if name == "futex":
            return self._for_lock(arguments, process)
        if name in ("clock_nanosleep", "nanosleep"):
            return Wait(kind="sleep", target=WaitTarget.SLEEP)
        if name in ("wait4", "waitid"):
            return self._for_children(pid)
        if name in _ON_FILE:
            return self._on_file(pid, arguments[0] & 0xFFFFFFFF, name, _is_at_pipe(thread))
        if name in ("poll", "ppoll"):
            has_end = arguments[2] != 0 if name == "ppoll" else _signed(arguments[2]) >= 0
            return self._on_files(pid, polled_files(pid, arguments[0], arguments[1]), has_end)
        if name in ("select", "pselect6"):
            return self._on_files(pid, selected_files(pid, arguments), arguments[4] != 0)
        if name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
            has_end = arguments[3] != 0 if name == "epoll_pwait2" else _signed(arguments[3]) >= 0
            return self._on_files(pid, watched_files(pid, arguments[0]), has_end)
        if name in ("open", "openat", "openat2"):
            path = absolute_path(pid, text_at(pid, arguments[0] if name == "open" else arguments[1]))
            target = WaitTarget.OPEN_FIFO if _is_at_pipe(thread) else WaitTarget.OPEN
            return Wait(kind="input", target=target, name=path)
        if name == "flock" or (name == "fcntl" and arguments[1] in _SET_LOCK_AND_WAIT):
            return self._for_file_lock(pid, arguments[0])
        if name in _FOR_A_SIGNAL:
            return Wait(kind="input", target=WaitTarget.SIGNAL)
        if name == "restart_syscall":  # a wait with a timeout, entered again after somebody looked
            return Wait(kind="timed", target=WaitTarget.TIMEOUT, name=thread.wchan)
        return Wait(kind="kernel", target=WaitTarget.SYSTEM_CALL, name=name, function=thread.wchan)

    def _for_lock(self, arguments: tuple[int, ...], process: ProcessSample) -> Wait:
        address, operation, pid = arguments[0], arguments[1], process.pid
        if operation & _FUTEX_COMMANDS not in _FUTEX_WAITS or arguments[3]:
            if any(begin <= address < end for begin, end in interpreter_data(pid, process.start_ticks)):
                # Python asks for its lock again every 5 ms, for as long as another of its threads has it.
                return Wait(kind="interpreter", target=WaitTarget.INTERPRETER_LOCK, wakers=frozenset({pid}))
            return Wait(kind="timed", target=WaitTarget.LOCK_WITH_TIMEOUT)
        if operation & _FUTEX_PRIVATE:
            return Wait(kind="lock", target=WaitTarget.LOCK, wakers=frozenset({pid}))
        return Wait(kind="lock", target=WaitTarget.SHARED_LOCK, wakers=frozenset(self._pids))

    def _for_children(self, pid: int) -> Wait:
        children = frozenset(process.pid for process in self._tree.processes if process.parent_pid == pid)
        if not children:  # another user's, perhaps: not all systems show those
            return Wait(kind="input", target=WaitTarget.HIDDEN_CHILD)
        return Wait(kind="tree", target=WaitTarget.CHILD, wakers=children)

    def _for_file_lock(self, pid: int, file: int) -> Wait:
        holders = lock_holders(pid, file)
        ours = holders & frozenset(self._pids)
        kind: WaitKind = "tree" if ours else "input"
        holders = ours or holders
        return Wait(kind=kind, target=WaitTarget.FILE_LOCK, name=target_of(pid, file), wakers=holders)

    def _on_files(self, pid: int, files: Iterable[int], has_end: bool) -> Wait:
        waits = [self._on_file(pid, file, "poll") for file in files]
        if not waits:  # how some programs sleep
            if has_end:
                return Wait(kind="sleep", target=WaitTarget.SLEEP)
            return Wait(kind="input", target=WaitTarget.SIGNAL)
        first = min(waits, key=lambda wait: _ORDER.index(wait.kind))
        same = [wait for wait in waits if wait.kind == first.kind]
        if first.kind == "net":  # a byte from any of them is news
            return min(same, key=lambda wait: wait.silent_seconds or 0.0)
        if first.kind == "tree":
            return replace(first, wakers=frozenset().union(*(wait.wakers for wait in same)))
        if first.kind == "lock" and has_end:
            return Wait(kind="timed", target=WaitTarget.TIMEOUT)
        return first

    def _on_file(self, pid: int, file: int, call: str, is_pipe: bool = False) -> Wait:
        target = target_of(pid, file)
        if target.startswith("socket:["):
            return self._on_socket(pid, int(target[8:-1]), target, call)
        if target.startswith("pipe:["):
            return self._on_pipe(pid, target, wants_writer=not call.startswith("write"))
        if target.startswith("anon_inode:"):
            return self._on_kernel_object(pid, file, target)
        if target.startswith(("/dev/pts/", "/dev/tty")):
            return Wait(kind="input", target=WaitTarget.TERMINAL, name=target)
        if target.startswith("/") and (is_pipe or (call == "poll" and not target.startswith("/dev/"))):
            # Only a FIFO: a plain file is always ready. The file itself is not asked; its disk may be dead.
            wait = self._on_pipe(pid, target, wants_writer=not call.startswith("write"))
            return wait if wait.kind == "tree" else Wait(kind="input", target=WaitTarget.FIFO, name=target)
        if target.startswith("/dev/"):
            return Wait(kind="device", target=WaitTarget.DEVICE, name=target)
        return Wait(kind="kernel", target=WaitTarget.FILE, name=target or f"file {file}", function=call)

    def _on_kernel_object(self, pid: int, file: int, target: str) -> Wait:
        if "eventfd" in target:
            return Wait(kind="lock", target=WaitTarget.OWN_THREAD, wakers=frozenset({pid}))
        if "pidfd" in target:
            wakers = process_of_pidfd(pid, file) & frozenset(self._pids)
            return Wait(kind="tree" if wakers else "input", target=WaitTarget.PROCESS_END, wakers=wakers)
        if "eventpoll" in target:
            return self._on_files(pid, watched_files(pid, file), has_end=False)
        if "timerfd" in target:
            return Wait(kind="timed", target=WaitTarget.TIMER)
        return Wait(kind="input", target=WaitTarget.KERNEL_OBJECT, name=target.removeprefix("anon_inode:"))

    def _on_pipe(self, pid: int, target: str, wants_writer: bool) -> Wait:
        ends = self._holders(target)
        others = frozenset(holder for holder, writes in ends if writes == wants_writer and holder != pid)
        if others:
            return Wait(kind="tree", target=WaitTarget.PROCESSES, wakers=others)
        if any(writes == wants_writer for _, writes in ends):
            return Wait(kind="lock", target=WaitTarget.OWN_THREAD, wakers=frozenset({pid}))
        return Wait(kind="input", target=WaitTarget.PIPE, name=target)

    def _on_socket(self, pid: int, inode: int, target: str, call: str) -> Wait:
        if self._sockets is None:
            self._sockets = read_sockets()
        found = self._sockets.get(inode)
        if found is None:
            return Wait(kind="input", target=WaitTarget.SOCKET, name=target)
        if found.state == LISTENING:
            return Wait(kind="listen", target=WaitTarget.LISTENING, name=found.local or target)
        peer = self._peer_of(found)
        others = frozenset(holder for holder, _ in self._holders(f"socket:[{peer}]")) if peer else frozenset()
        if others - {pid}:
            return Wait(kind="tree", target=WaitTarget.PROCESSES, wakers=others - {pid})
        if others:
            return Wait(kind="lock", target=WaitTarget.OWN_THREAD, wakers=others)
        if not found.remote:
            return Wait(kind="input", target=WaitTarget.LOCAL_SOCKET, name=found.local)
        is_connecting = found.state == CONNECTING or call == "connect"
        doing = WaitTarget.CONNECTING if is_connecting else WaitTarget.ADDRESS
        return Wait(
            kind="net",
            target=doing,
            name=found.remote,
            silent_seconds=found.silent_seconds,
            is_lost=found.is_lost,
        )

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
                for name, writes in open_files(pid):
                    self._held.setdefault(name, []).append((pid, writes))
        return self._held.get(target, [])


def _is_frozen(thread: ThreadSample) -> bool:
    """True for a thread that the kernel has frozen; calls that wait politely are never in state D otherwise."""
    if thread.wchan in _FROZEN:
        return True
    return thread.state == "D" and thread.syscall is not None and call_name(thread.syscall[0]) in _POLITE


def _is_at_pipe(thread: ThreadSample) -> bool:
    return "pipe" in thread.wchan or thread.wchan in ("wait_for_partner", "fifo_open")


def _signed(number: int) -> int:
    """The lower half of an argument as a signed number: -1 is no limit."""
    half = number & 0xFFFFFFFF
    return half - (1 << 32) if half >> 31 else half
