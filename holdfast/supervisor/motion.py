"""Looks whether the stacks of a busy process move.

A loop that will never end shows the same few frames for ever, takes no memory and moves no data. A long evaluation
shows hundreds of different frames, and a long native call at least asks for memory. Stacks come from py-spy where it is
installed (nothing is stopped, no signal sent), else from the child's own faulthandler, asked by SIGUSR1, and only where
the process is known to catch that.
"""

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.runfolder import STACKS
from holdfast.supervisor.dumps import find_spy
from holdfast.supervisor.ending import send
from holdfast.supervisor.members import Identity
from holdfast.supervisor.processes import ProcessSample, TreeSample
from holdfast.supervisor.verdict import busiest

LOOKS_TO_KNOW = 12  # samples of the stack before a judgement
_FEW = 3  # as many different stacks as a spinning loop shows
_FAULTS, _IO_BYTES = 256, 1 << 20  # so much is work
_MAIN_SHARE, _HARD_SHARE = 0.2, 0.5  # of a process's work; of a processor
_LONGEST_SECONDS = 3.0
_TURN_CPU_SECONDS = 0.1  # that a process must have worked between two looks: it could not move without

Signature = tuple[str, ...]
# 'train (script.py:12)' of py-spy; 'File "script.py", line 12 in train' of faulthandler
_FRAME = re.compile(
    r"^\s+(?P<name>\S+) \((?P<file>[^:)]+)(?::\d+)?\)$"
    r'|^\s+File "(?P<own_file>[^"]+)", line \d+ in (?P<own_name>.+)$',
    re.MULTILINE,
)


class Motions:
    """Looks at the stacks of a tree: of the process that trains and of the busiest one."""

    def __init__(self, attempt: Path):
        self._attempt = attempt
        self._by_pid: dict[int, Motion] = {}
        self._has_new_program = False

    def forget(self) -> None:
        """Begin again: there was progress."""
        self._by_pid.clear()
        self._has_new_program = False

    def look(self, first: TreeSample, last: TreeSample, fronts: Sequence[int], since_seconds: float) -> None:
        """Take one more look; what was started since then is work that somebody asked for."""
        by_pid = {process.pid: process for process in last.processes}
        front = next((by_pid[pid] for pid in fronts if pid in by_pid), last.processes[0])
        for process in {item.pid: item for item in (front, busiest(first, last))}.values():
            motion = self._by_pid.setdefault(process.pid, Motion(self._attempt))
            was_seen = motion.look(process, *working_thread(process, first, last.at_seconds - first.at_seconds))
            if not was_seen and _born_seconds(process) > since_seconds:
                self._has_new_program = True  # a compiler, say: it has no Python stack

    @property
    def moves(self) -> bool | None:
        """Whether any of these stacks moves; None while too little was seen."""
        answers = [motion.moves for motion in self._by_pid.values() if motion.moves is not None]
        if self._has_new_program or any(answers):
            return True
        return False if answers else None


class Motion:
    """Collects stacks of one busy process until it can say whether they move."""

    def __init__(self, attempt: Path):
        self._stacks = attempt / STACKS
        self._py_spy = find_spy()
        self._seen: deque[Signature] = deque(maxlen=LOOKS_TO_KNOW)
        self._pid = 0
        self._cpu_seconds = 0.0
        self._read_from = 0

    def look(self, process: ProcessSample, tid: int, is_idle: bool) -> bool:
        """Take one more stack of a process; False when there is none to be had."""
        if process.pid != self._pid:
            self._pid, self._read_from = process.pid, self._size_of(process.pid)
        text = self._by_py_spy(process.pid) if self._py_spy else ""
        signature = thread_signature(text, tid)
        if not signature and tid == process.pid and self._answers(process):
            signature = thread_signature(self._last_dump(process.pid), tid)
            send(Identity(process.pid, process.start_ticks), signal.SIGUSR1)  # what it writes is read at the next look
        if signature and (is_idle or process.cpu_seconds - self._cpu_seconds >= _TURN_CPU_SECONDS):
            self._cpu_seconds = process.cpu_seconds
            # What an idle thread's process does meanwhile is the work of others.
            work = "" if is_idle else f"{process.faults // _FAULTS} {process.io_bytes // _IO_BYTES}"
            self._seen.append((*signature, work))
        return bool(signature) or self._answers(process)

    @property
    def moves(self) -> bool | None:
        """Whether the stack moves; None while too little was seen."""
        if len(self._seen) < LOOKS_TO_KNOW:
            return None
        return len(set(self._seen)) > _FEW

    def _answers(self, process: ProcessSample) -> bool:
        """True when the signal is caught, and by the handler that writes into our file."""
        return process.catches_usr1 and self._dump_file(process.pid).exists()

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


def working_thread(process: ProcessSample, first: TreeSample, seconds: float) -> tuple[int, bool]:
    """The thread whose stack tells whether a process gets on, and whether that thread is idle.

    The main thread, unless another works hard while it waits. One that only ticks, such as a monitor, tells nothing.
    """
    before = {thread.tid: thread for known in first.processes for thread in known.threads}
    ran = {thread.tid: thread.run_ns - before.get(thread.tid, thread).run_ns for thread in process.threads}
    hardest = max(ran, key=lambda tid: ran[tid], default=process.pid)
    if ran.get(process.pid, 0) >= _MAIN_SHARE * sum(ran.values()):
        return process.pid, False
    if ran[hardest] / 1e9 >= _HARD_SHARE * seconds:
        return hardest, False
    main = process.threads[0]
    return process.pid, main.turns == before.get(main.tid, main).turns


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


def _born_seconds(process: ProcessSample) -> float:
    """When a process began, on the monotonic clock; good enough where the machine has not slept."""
    return process.start_ticks / os.sysconf("SC_CLK_TCK")
