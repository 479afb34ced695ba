"""Finds out what the threads of a quiet tree on macOS wait for: by their innermost call, from two looks at all stacks.

macOS has no /proc/PID/syscall. Its `sample` prints the native stack of every thread, without privileges for the user's
own processes, and the innermost call is the kind of wait: `__psynch_mutexwait` is a mutex, `__wait4` a child. A
condition variable looks the same with and without a timeout; for Python's own locks the line of the Python stack
(SIGUSR1) says which. A look takes seconds, so it is made in a thread; what both looks show, some seconds apart, is
believed.
"""

import dataclasses
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.observations import APPLE_GPU, Wait, WaitKind, WaitTarget
from holdfast.core.runfolder import STACKS
from holdfast.logs.crash_reports import read_samples
from holdfast.supervisor.libproc import LibProc
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample, this_system
from holdfast.supervisor.python_stacks import PythonCall, last_dump, read_dump, waits_forever

GAP_SECONDS = 5.0  # between two looks: longer than what polls, shorter than what a person waits for
_AGAIN_SECONDS, _LONGEST_AGAIN_SECONDS = 10.0, 120.0  # until waits that have changed are looked at again
_SAMPLE_SECONDS = 10.0  # of a process with torch; its symbols take longer than the sampling
_MOST_PROCESSES, _AT_ONCE = 32, 2
_ANSWER_SECONDS = 0.3  # faulthandler needs no lock and answers at once, or never

_MAIN_QUEUE = "com.apple.main-thread"
_NUMBER = re.compile(r"^Thread_(\d+)(?::\s*(?P<name>\S.*?))?\s*(?:DispatchQueue|$)")
_PYTHON_LOCK = re.compile(r"PyThread_acquire_lock|_PyMutex_Lock|lock_PyThread|_PySemaphore|_PyParkingLot|acquire_timed")
_INTERPRETER = re.compile(r"^take_gil|^_PyEval_AcquireLock|^PyEval_RestoreThread")
_LIMITED = re.compile(r"(?i)timed|wait_for\b|wait_until|_timeout|sleep|waitUntilDate|with_timeout|park_until")
# Only these frames below a wait say that it is for the GPU: every thread of macOS waits in the same few calls.
GPU_WAIT = re.compile(
    r"at::(?:native::)?mps::|torch::mps::|MTL(?:::)?(?:CommandBuffer|SharedEvent)|MPSStream|waitUntil(?:Completed|Signaled)"
    r"|mlx::core::"
)
_GPU_MODULES = ("Metal", "MetalPerformanceShadersGraph", "MPSCore", "AGXMetal", "IOGPU")
_SLEEP_FRAMES = re.compile(r"^(?:pysleep|time_sleep|nanosleep|usleep|sleep)$")

_LOCK_CALLS = (
    *("psynch_mutexwait", "psynch_rw_rdlock", "psynch_rw_wrlock"),
    *("ulock_wait", "ulock_wait2", "semaphore_wait_trap", "sem_wait"),
)
_CONDITION_CALLS = ("psynch_cvwait",)
_IDLE_CALLS = ("workq_kernreturn", "sigwait", "bsdthread_terminate")
_EVENT_CALLS = ("kevent", "kevent64", "kevent_id", "kevent_qos", "select", "pselect", "poll", "ppoll")
_NETWORK_CALLS = ("recvfrom", "recvmsg", "recv", "sendto", "sendmsg", "send", "connect", "connectx", "accept")
_PIPE_CALLS = ("read", "readv", "write", "writev", "pread")
_CHILD_CALLS = ("wait4", "waitid", "waitpid", "wait4_nocancel")
_FILE_CALLS = ("fsync", "fcntl", "fstat64", "stat64", "lstat64", "close", "mmap", "pwrite", "getdirentries64")


@dataclass(frozen=True, slots=True)
class SampledThread:
    """One thread as `sample` shows it."""

    number: int  # the kernel's number of the thread
    name: str
    is_main: bool
    frames: tuple[str, ...]  # functions, innermost first
    modules: tuple[str, ...]
    is_moving: bool = False  # it was seen in more than one place

    @property
    def call(self) -> str:
        """The innermost call, without the decoration of its variants."""
        name = self.frames[0] if self.frames else ""
        return name.lstrip("_").partition("$")[0].removesuffix("_nocancel")


@dataclass(frozen=True, slots=True)
class Look:
    """The stacks of every process at one moment."""

    began: float
    turns: Mapping[int, int]  # of each thread
    threads: Mapping[int, tuple[SampledThread, ...]]  # by pid
    dumps: Mapping[int, tuple[tuple[PythonCall, ...], ...]]  # by pid: the Python stacks, main thread first


class StackWaits:
    """Looks at the stacks of a quiet tree, twice, and keeps what they say until the tree moves."""

    def __init__(self, attempt: Path, libproc: LibProc | None):
        self._attempt, self._libproc = attempt, libproc
        self._looks: list[Look] = []
        self._running: threading.Thread | None = None
        self._generation = 0
        self._looked_at, self._again_seconds = float("-inf"), _AGAIN_SECONDS

    def forget(self) -> None:
        """The tree has moved."""
        if self._looks or self._running:
            self._generation += 1  # an answer that still comes is of the past
        self._looks, self._again_seconds = [], _AGAIN_SECONDS

    def read(self, tree: TreeSample) -> TreeSample:
        """The same sample with what its threads wait for, as far as two looks have shown it."""
        now = tree.at_seconds
        if len(self._looks) == 2 and self._has_changed(tree) and now - self._looked_at >= self._again_seconds:
            self._looks = []
            self._again_seconds = min(2 * self._again_seconds, _LONGEST_AGAIN_SECONDS)
        is_due = not self._looks or (len(self._looks) == 1 and now - self._looks[0].began >= GAP_SECONDS)
        if len(self._looks) < 2 and is_due and not self.is_looking:
            self._looked_at = now
            self._running = threading.Thread(
                target=self._look, args=(tree, self._generation), daemon=True, name="looks"
            )
            self._running.start()
        if len(self._looks) < 2:
            return dataclasses.replace(tree, waits=_unknown_waits(tree))
        return dataclasses.replace(
            tree, waits=_waits(tree, self._looks[0], self._looks[1], _Files(tree, self._libproc))
        )

    @property
    def is_looking(self) -> bool:
        """True while a look is being made."""
        return self._running is not None and self._running.is_alive()

    def _look(self, tree: TreeSample, generation: int) -> None:
        look = take_look(tree, self._attempt)
        if generation == self._generation:
            self._looks = [*self._looks, look]

    def _has_changed(self, tree: TreeSample) -> bool:
        """True when a process is new, or a main thread had a turn since the last look."""
        seen = self._looks[-1].turns
        return any(seen.get(process.pid) != process.threads[0].turns for process in tree.processes if process.threads)


def take_look(tree: TreeSample, attempt: Path) -> Look:
    """The native stacks of each process, and the Python stacks of those whose main thread waits for a lock."""
    turns = {thread.tid: thread.turns for process in tree.processes for thread in process.threads}
    processes = tree.processes[:_MOST_PROCESSES]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        texts = list(pool.map(lambda process: run_sample(process.pid), processes))
    threads = {process.pid: read_sample(text) for process, text in zip(processes, texts, strict=True)}
    asked = [process for process in processes if _needs_python(threads[process.pid])]
    return Look(tree.at_seconds, turns, threads, _ask_python(asked, attempt))


def run_sample(pid: int, seconds: float = _SAMPLE_SECONDS) -> str:
    """What `sample` prints of a process: a second of samples, ten milliseconds apart; empty when it fails."""
    command = ["/usr/bin/sample", str(pid), "1", "10", "-mayDie"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def read_sample(text: str) -> tuple[SampledThread, ...]:
    """The threads in what `sample` printed."""
    found: dict[str, SampledThread] = {}
    for stack in read_samples(enumerate(text.splitlines(), 1)):
        number = _NUMBER.match(stack.thread)
        if stack.thread in found:  # each leaf of the tree is one stack
            found[stack.thread] = dataclasses.replace(found[stack.thread], is_moving=True)
            continue
        found[stack.thread] = SampledThread(
            number=int(number[1]) if number else 0,
            name=(number["name"] or "") if number else "",
            is_main=_MAIN_QUEUE in stack.thread,
            frames=tuple(frame.function for frame in stack.frames),
            modules=tuple(frame.module for frame in stack.frames),
        )
    threads = tuple(found.values())
    if threads and not any(thread.is_main for thread in threads):
        return (dataclasses.replace(threads[0], is_main=True), *threads[1:])
    return threads


def _needs_python(threads: Sequence[SampledThread]) -> bool:
    """Whether the Python stack is needed: no native one, or a main thread that waits for a lock of Python."""
    main = next((thread for thread in threads if thread.is_main), None)
    return main is None or any(_PYTHON_LOCK.search(frame) for frame in main.frames)


def _ask_python(processes: Iterable[ProcessSample], attempt: Path) -> dict[int, tuple[tuple[PythonCall, ...], ...]]:
    """The Python stacks of the processes whose handler writes into our file."""
    from holdfast.supervisor.ending import send  # which needs this module's own system

    folder, sizes = attempt / STACKS, dict[int, int]()
    for process in processes:
        file = folder / f"python-{process.pid}.txt"
        if file.exists() and this_system().answers_usr1(process.pid) is not False:
            size = file.stat().st_size
            if send(process.identity, signal.SIGUSR1):
                sizes[process.pid] = size
    if sizes:
        time.sleep(_ANSWER_SECONDS)
    return {
        pid: tuple(tuple(calls) for calls in last_dump(read_dump(folder, pid, size))) for pid, size in sizes.items()
    }


class _Files:
    """Who is at the other end of pipes and sockets; asked once for each sample, and only when a wait needs it."""

    def __init__(self, tree: TreeSample, libproc: LibProc | None):
        self._tree, self._libproc = tree, libproc
        self._ends: dict[int, set[int]] | None = None  # the processes that hold an end of a pipe

    def children(self, pid: int) -> frozenset[int]:
        """The living children of a process in the tree."""
        return frozenset(process.pid for process in self._tree.processes if process.parent_pid == pid)

    def pipe_partners(self, pid: int) -> frozenset[int]:
        """The processes of the tree that hold the other end of one of its pipes."""
        if self._libproc is None:
            return self.children(pid)
        if self._ends is None:
            self._ends = {}
            for process in self._tree.processes:
                for own, _ in self._libproc.pipes(process.pid):
                    self._ends.setdefault(own, set()).add(process.pid)
        others = (self._ends.get(other, set()) for _, other in self._libproc.pipes(pid))
        return frozenset(set().union(*others) - {pid})

    def server(self, pid: int) -> str:
        """The address of a server that a process is connected to; empty without one."""
        import psutil

        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except (psutil.Error, OSError, RuntimeError):
            return ""
        for one in connections:
            if one.raddr and one.status in (psutil.CONN_ESTABLISHED, psutil.CONN_SYN_SENT):
                return f"{one.raddr.ip}:{one.raddr.port}"
        return ""


def _unknown_waits(tree: TreeSample) -> dict[int, Wait]:
    return {thread.tid: _held(thread) or _UNKNOWN for process in tree.processes for thread in process.threads}


_UNKNOWN = Wait(kind="timed", target=WaitTarget.UNKNOWN)


def _waits(tree: TreeSample, first: Look, second: Look, files: _Files) -> dict[int, Wait]:
    waits = _unknown_waits(tree)
    for process in tree.processes:
        before, after = (_by_tid(process, look.threads.get(process.pid, ())) for look in (first, second))
        dumps = second.dumps.get(process.pid, ())
        for thread in process.threads:
            found = after.get(thread.tid)
            if _held(thread):
                continue
            if found is None or (thread.tid in before and before[thread.tid].frames != found.frames):
                if thread.tid == process.pid and dumps and dumps == first.dumps.get(process.pid):
                    waits[thread.tid] = wait_by_python(process.pid, dumps[0], files.children(process.pid))
                continue  # it moved between the two looks, or was not seen
            waits[thread.tid] = _wait_of(found, process.pid, dumps, files)
    return waits


def _held(thread: ThreadSample) -> Wait | None:
    """What the state of a thread says by itself."""
    match thread.state:
        case "T":
            return Wait(kind="stopped", target=WaitTarget.STOP_SIGNAL)
        case "t":
            return Wait(kind="traced", target=WaitTarget.DEBUGGER)
        case "R":
            return Wait(kind="run", target=WaitTarget.NOTHING)
    return None


def _by_tid(process: ProcessSample, sampled: Sequence[SampledThread]) -> dict[int, SampledThread]:
    """The sampled threads by the numbers of the process's own sample."""
    from holdfast.supervisor.macos import OTHER_THREADS

    main = next((thread for thread in sampled if thread.is_main), None)
    found = {OTHER_THREADS + thread.number: thread for thread in sampled if thread is not main}
    known = {thread.tid for thread in process.threads}
    others = [thread for thread in sampled if thread is not main]
    if not known & found.keys() and len(others) == len(process.threads) - 1:
        # Numbers of another kind: both lists are in the order in which the threads began.
        found = {thread.tid: other for thread, other in zip(process.threads[1:], others, strict=True)}
    if main:
        found[process.pid] = main
    return found


def _wait_of(thread: SampledThread, pid: int, dumps: Sequence[Sequence[PythonCall]], files: _Files) -> Wait:
    """What one thread waits for, by its innermost call and the frames below it."""
    call, frames = thread.call, thread.frames
    if thread.is_moving:
        return Wait(kind="run", target=WaitTarget.NOTHING)
    if _waits_for_gpu(thread):
        return Wait(kind="device", target=WaitTarget.DEVICE, name=APPLE_GPU, function=call)
    if any(_SLEEP_FRAMES.match(frame) for frame in frames) or call in ("semwait_signal", "nanosleep"):
        return Wait(kind="sleep", target=WaitTarget.SLEEP, function=call)
    if any(_INTERPRETER.match(frame) for frame in frames):
        return Wait(kind="interpreter", target=WaitTarget.INTERPRETER_LOCK, wakers=frozenset({pid}))
    if call in _LOCK_CALLS or call in _CONDITION_CALLS:
        return _lock_wait(thread, pid, dumps)
    if call in _CHILD_CALLS:
        return _for_children(files.children(pid))
    if call in _IDLE_CALLS or (call.startswith("mach_msg") and not thread.is_main):
        # A thread of a system queue: it hands out what others ask for, and wakes nobody by itself.
        return Wait(kind="listen", target=WaitTarget.KERNEL_OBJECT, name=call)
    if call in _EVENT_CALLS or call in _NETWORK_CALLS:
        return _event_wait(call, pid, files)
    if call in _PIPE_CALLS:
        if partners := files.pipe_partners(pid):
            return Wait(kind="tree", target=WaitTarget.PROCESSES, wakers=partners, function=call)
        return Wait(kind="input", target=WaitTarget.PIPE, name=call)
    if call == "flock" or (call == "fcntl" and any("lock" in frame for frame in frames)):
        return Wait(kind="input", target=WaitTarget.FILE_LOCK, name="")
    if call in ("open", "openat"):
        return Wait(kind="input", target=WaitTarget.OPEN, name="")
    if call in _FILE_CALLS:
        return Wait(kind="kernel", target=WaitTarget.SYSTEM_CALL, name=call)
    return Wait(kind="timed", target=WaitTarget.UNKNOWN, name=call)


def _lock_wait(thread: SampledThread, pid: int, dumps: Sequence[Sequence[PythonCall]]) -> Wait:
    is_limited: bool | None = any(_LIMITED.search(frame) for frame in thread.frames)
    if any(_PYTHON_LOCK.search(frame) for frame in thread.frames):
        is_limited = _is_limited(thread, dumps)
    if is_limited:
        return Wait(kind="timed", target=WaitTarget.LOCK_WITH_TIMEOUT, function=thread.call)
    return Wait(kind="lock", target=WaitTarget.LOCK, function=thread.call, wakers=frozenset({pid}))


def _is_limited(thread: SampledThread, dumps: Sequence[Sequence[PythonCall]]) -> bool:
    """Whether a wait for a lock of Python may have a limit; without the Python stack it may."""
    if not dumps:
        return True
    if thread.is_main:
        return waits_forever(dumps[0]) is not True
    # Which of the other Python stacks is this thread's is not known: one limited wait among them is enough.
    return any(waits_forever(calls) is False for calls in dumps[1:])


def wait_by_python(pid: int, calls: Sequence[PythonCall], children: frozenset[int]) -> Wait:
    """What a main thread waits for by its Python stack alone, where `sample` gives nothing."""
    inner = calls[0]
    if inner.file.endswith("subprocess.py") or (inner.function in ("wait", "poll") and "popen_" in inner.file):
        return _for_children(children)
    if "sleep(" in inner.source:
        return Wait(kind="sleep", target=WaitTarget.SLEEP)
    if inner.file.endswith(("socket.py", "ssl.py")):
        return Wait(kind="net", target=WaitTarget.ADDRESS, name="")
    is_lock = inner.file.endswith(("threading.py", "queue.py")) or "acquire(" in inner.source
    if (is_lock or inner.source.startswith("with ")) and waits_forever(calls):
        return Wait(kind="lock", target=WaitTarget.LOCK, wakers=frozenset({pid}))
    return _UNKNOWN


def _for_children(children: frozenset[int]) -> Wait:
    if not children:
        return Wait(kind="input", target=WaitTarget.HIDDEN_CHILD)
    return Wait(kind="tree", target=WaitTarget.CHILD, wakers=children)


def _event_wait(call: str, pid: int, files: _Files) -> Wait:
    """A wait for one of several files, or for one connection."""
    if address := files.server(pid):
        is_connecting = call.startswith("connect")
        return Wait(kind="net", target=WaitTarget.CONNECTING if is_connecting else WaitTarget.ADDRESS, name=address)
    kind: WaitKind = "tree" if (partners := files.pipe_partners(pid) or files.children(pid)) else "timed"
    if partners:
        return Wait(kind=kind, target=WaitTarget.PROCESSES, wakers=partners, function=call)
    if call == "accept":
        return Wait(kind="listen", target=WaitTarget.LISTENING, name="")
    return Wait(kind=kind, target=WaitTarget.UNKNOWN, name=call)


def _waits_for_gpu(thread: SampledThread) -> bool:
    is_gpu = any(GPU_WAIT.search(frame) for frame in thread.frames)
    return is_gpu or (thread.is_main and any(module.startswith(_GPU_MODULES) for module in thread.modules))
