"""Detects work that CPU time does not show: changing stacks, a computing GPU, a writing disk.

An endless loop keeps showing the same few frames, allocates no memory and moves no data. A long evaluation shows
hundreds of different frames, and a long native call at least allocates memory. Stacks come from py-spy if it is
installed (nothing is stopped, no signal is sent), else from the child's faulthandler via SIGUSR1, and only if the
process is known to handle that signal.

A GPU is asked only about trees that have its driver open, and by a separate process: a driver that hangs must not hang
the supervisor. A disk is alive while the kernel's unwritten data shrinks. The kernel does not say whose data that is,
so a wait for a file server is not judged by it.
"""

import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Container, Sequence
from pathlib import Path

from holdfast.core.observations import APPLE_GPU, TreeVerdict
from holdfast.core.runfolder import STACKS
from holdfast.supervisor.dumps import find_spy
from holdfast.supervisor.ending import send
from holdfast.supervisor.hang import StackReport
from holdfast.supervisor.processes import Identity, ProcessSample, TreeSample
from holdfast.supervisor.verdict import busiest

SAMPLES_TO_KNOW = 12  # stacks before a judgment
_FEW = 3  # as many different stacks as a spinning loop shows
_FAULTS, _IO_BYTES = 256, 1 << 20  # so much is work
_MAIN_SHARE, _HARD_SHARE = 0.2, 0.5  # of a process's work; of a processor
_LONGEST_SECONDS = 3.0
_TURN_CPU_SECONDS = 0.1  # of work between two samples: without any, a stack cannot move

Signature = tuple[str, ...]
# 'train (script.py:12)' of py-spy; 'File "script.py", line 12 in train' of faulthandler
_FRAME = re.compile(
    r"^\s+(?P<name>\S+) \((?P<file>[^:)]+)(?::\d+)?\)$"
    r'|^\s+File "(?P<own_file>[^"]+)", line \d+ in (?P<own_name>.+)$',
    re.MULTILINE,
)
_BUSY_PERCENT = 5
_APPLE_USE = re.compile(r'"Device Utilization %"\s*=\s*(\d+)')
_ANSWER_SECONDS = 3.0
_ASK_AGAIN_SECONDS = 2.0
_DISK_SECONDS = 60.0
_DISK_LONGEST_SECONDS = 3600.0
_DISK_KILOBYTES = 256
# The kernel's functions that wait for the answer to one request of a FUSE, NFS, CIFS, Ceph or 9p mount.
_SERVER_CALLS = re.compile(r"fuse_|request_wait_answer|rpc_wait|nfs4_wait|wait_for_response|cifs_|smb|ceph_|p9_|autofs")


class StackMotions:
    """Samples the stacks of a tree: of the process that trains and of the busiest one."""

    def __init__(self, attempt: Path):
        self._attempt = attempt
        self._by_pid: dict[int, _StackMotion] = {}
        self._has_new_program, self._tries = False, 0

    def forget(self) -> None:
        """Begin again: there was progress."""
        self._by_pid.clear()
        self._has_new_program, self._tries = False, 0

    def sample(
        self, first: TreeSample, last: TreeSample, training_pids: Sequence[int], known: Container[Identity]
    ) -> None:
        """Take one more stack of each; a program that is not among the `known` ones was started since the last progress
        and counts as work."""
        self._tries += 1
        by_pid = {process.pid: process for process in last.processes}
        trainer = next((by_pid[pid] for pid in training_pids if pid in by_pid), last.processes[0])
        for process in {item.pid: item for item in (trainer, busiest(first, last))}.values():
            motion = self._by_pid.setdefault(process.pid, _StackMotion(self._attempt))
            was_seen = motion.sample(process, first, last)
            if not was_seen and process.identity not in known:
                self._has_new_program = True  # a compiler, say: it has no Python stack

    @property
    def report(self) -> StackReport:
        """What was seen of the stacks so far."""
        answers = [motion.moves for motion in self._by_pid.values() if motion.moves is not None]
        moves = any(answers) if answers else None
        has_seen = any(motion.has_seen for motion in self._by_pid.values())
        return StackReport(
            moves=True if self._has_new_program else moves,
            is_unseen=self._tries >= SAMPLES_TO_KNOW and not has_seen,
        )


class _StackMotion:
    """Collects stacks of one busy process until it can say whether they move."""

    def __init__(self, attempt: Path):
        self._stacks = attempt / STACKS
        self._py_spy = find_spy()
        self._seen: deque[Signature] = deque(maxlen=SAMPLES_TO_KNOW)
        self._pid = 0
        self._cpu_seconds = 0.0
        self._read_from = 0
        self._signaled_at: deque[float] = deque(maxlen=SAMPLES_TO_KNOW)

    def sample(self, process: ProcessSample, first: TreeSample, last: TreeSample) -> bool:
        """Take one more stack of a process; False if none is available."""
        signals = sum(at >= first.at_seconds for at in self._signaled_at)
        tid, is_idle = working_thread(process, first, last.at_seconds - first.at_seconds, signals)
        if process.pid != self._pid:
            self._pid, self._read_from = process.pid, self._size_of(process.pid)
        text = self._by_py_spy(process.pid) if self._py_spy else ""
        signature = thread_signature(text, tid)
        if not signature and tid == process.pid and self._answers(process):
            signature = thread_signature(self._last_dump(process.pid), tid)
            # What it writes is read at the next sample.
            if send(process.identity, signal.SIGUSR1):
                self._signaled_at.append(last.at_seconds)
        if signature and (is_idle or process.cpu_seconds - self._cpu_seconds >= _TURN_CPU_SECONDS):
            self._cpu_seconds = process.cpu_seconds
            # What an idle thread's process does meanwhile is the work of others.
            work = "" if is_idle else f"{process.faults // _FAULTS} {process.io_bytes // _IO_BYTES}"
            self._seen.append((*signature, work))
        return bool(signature) or self._answers(process)

    @property
    def has_seen(self) -> bool:
        """True when at least one stack could be read."""
        return bool(self._seen)

    @property
    def moves(self) -> bool | None:
        """Whether the stack moves; None while too little was seen."""
        if len(self._seen) < SAMPLES_TO_KNOW:
            return None
        return len(set(self._seen)) > _FEW

    def _answers(self, process: ProcessSample) -> bool:
        """True when the signal is caught, and by the handler that writes into our file."""
        return process.catches_usr1 is not False and self._dump_file(process.pid).exists()

    def _by_py_spy(self, pid: int) -> str:
        command = [str(self._py_spy), "dump", "--nonblocking", "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_LONGEST_SECONDS, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode(errors="replace")

    def _dump_file(self, pid: int) -> Path:
        return self._stacks / f"python-{pid}.txt"

    def _size_of(self, pid: int) -> int:
        try:
            return self._dump_file(pid).stat().st_size
        except OSError:
            return 0

    def _last_dump(self, pid: int) -> str:
        try:
            with self._dump_file(pid).open("rb") as file:
                file.seek(self._read_from)
                text = file.read(1 << 20)
        except OSError:
            return ""
        self._read_from += len(text)
        return text.decode(errors="replace")


def working_thread(process: ProcessSample, first: TreeSample, seconds: float, signals: int = 0) -> tuple[int, bool]:
    """The thread whose stack tells whether a process makes progress, and whether that thread is idle.

    The main thread, unless another works hard while it waits. One that only ticks, such as a monitor, is ignored.
    `signals` are those the supervisor sent to read the stack: each wakes the main thread once, which is no work of it.
    """
    before = {thread.tid: thread for known in first.processes for thread in known.threads}
    ran = {thread.tid: thread.run_ns - before.get(thread.tid, thread).run_ns for thread in process.threads}
    hardest = max(ran, key=lambda tid: ran[tid], default=process.pid)
    if ran.get(process.pid, 0) >= _MAIN_SHARE * sum(ran.values()):
        return process.pid, False
    if ran[hardest] / 1e9 >= _HARD_SHARE * seconds:
        return hardest, False
    main = process.threads[0]
    return process.pid, main.turns - before.get(main.tid, main).turns <= signals


def thread_signature(dump: str, tid: int) -> Signature:
    """The functions of a thread, innermost first, without line numbers: a loop goes over its own lines."""
    parts = re.split(r"^(?=(?:Current t|T)hread )", dump, flags=re.MULTILINE)
    threads = [part for part in parts if _FRAME.search(part)]
    wanted = [part for part in threads if part.startswith(f"Thread {tid} ")]
    if not wanted and 'File "' in dump:
        wanted = threads[-1:]  # faulthandler gives no such numbers, and lists the main thread, the oldest, last
    return tuple(
        f"{found['name'] or found['own_name']} ({found['file'] or found['own_file']})"
        for part in wanted
        for found in _FRAME.finditer(part)
    )


class GpuActivity:
    """Asks whether a GPU is at work, and remembers the answer for a moment."""

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._is_busy = False

    def is_busy(self, tree: TreeSample, now: float) -> bool:
        """True when the tree uses a GPU, and one is at work or does not tell."""
        if now - self._asked_at >= _ASK_AGAIN_SECONDS:
            self._asked_at = now
            self._is_busy = uses_gpu(tree) and gpu_is_busy() is not False  # where nobody can say, it may well be
        return self._is_busy


class DiskActivity:
    """Watches whether the data that waits to be written is getting less."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._alive_at = float("-inf")
        self._unwritten = 0

    def is_alive(self, now: float) -> bool:
        """True if something was written within the last minute."""
        unwritten = unwritten_kilobytes()
        if self._first_at is None or now - self._alive_at > 2 * _DISK_SECONDS:
            self._first_at = now
        if self._unwritten - unwritten >= _DISK_KILOBYTES:
            self._alive_at = now
        self._unwritten = unwritten
        return now - self._alive_at < _DISK_SECONDS and now - self._first_at < _DISK_LONGEST_SECONDS


def waits_for_server(verdict: TreeVerdict) -> bool:
    """True when a wait in the kernel is for the server of a mount, and not for a disk of this machine."""
    wait = verdict.main.last_wait if verdict.main else None
    return wait is not None and any(_SERVER_CALLS.match(name) for name in (wait.name, wait.function))


def unwritten_kilobytes() -> int:
    """What the kernel still has to write to disks; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Dirty:", "Writeback:")))


def uses_gpu(tree: TreeSample) -> bool:
    """True when a process of the tree has an NVIDIA or AMD device open, or waits for the Apple GPU."""
    for process in tree.processes:
        folder = f"/proc/{process.pid}/fd"
        try:
            targets = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]  # noqa: PTH115, PTH208
        except OSError:
            continue
        if any(target.startswith(("/dev/nvidia", "/dev/kfd")) for target in targets):
            return True
    return any(wait.kind == "device" and wait.name == APPLE_GPU for wait in tree.waits.values())


def gpu_is_busy() -> bool | None:
    """Whether any GPU is at work; None when unknown."""
    numbers: list[str] = []
    if command := shutil.which("nvidia-smi"):
        numbers = _answer(command, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits").split()
    elif command := shutil.which("ioreg"):
        numbers = _APPLE_USE.findall(_answer(command, "-r", "-d", "1", "-c", "IOAccelerator"))
    else:
        return _amd_is_busy()
    return any(int(number) >= _BUSY_PERCENT for number in numbers if number.isdigit()) if numbers else None


def _answer(*query: str) -> str:
    try:
        done = subprocess.run(query, capture_output=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _amd_is_busy() -> bool | None:
    numbers = []
    for file in Path("/sys/class/drm").glob("card*/device/gpu_busy_percent"):
        try:
            numbers.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return any(number >= _BUSY_PERCENT for number in numbers) if numbers else None
