"""The watcher for systems that show neither threads nor waits: step times and CPU times alone.

Other systems answer through psutil. Linux without /proc (some containers and sandboxes) shows no other process at all;
there only the child of this process is known, by the clock that the kernel keeps of its CPU time, and it can be ended
as long as this process has not reaped it.
"""

import os
import sys
import time
from collections.abc import Iterator, Set
from pathlib import Path

from holdfast.core.observations import Blindness, Unseen
from holdfast.supervisor.processes import Member, ProcessReader, ProcessSample, ThreadSample, TreeSample, WaitReader

_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED of a whole process, see clock_getcpuclockid(3)


class PortableSystem:
    """What every system shows."""

    def __init__(self) -> None:
        self._has_table = not sys.platform.startswith("linux")
        hidden: tuple[Unseen, ...] = () if self._has_table else ("descendants",)
        self.blindness: Blindness | None = Blindness(system="portable", unseen=("threads", "waits", "exits", *hidden))

    def members(self) -> Iterator[Member]:
        """Every process that can be seen."""
        if self._has_table:
            yield from psutil_members()

    def find_member(self, pid: int) -> Member | None:
        """One process; None if it does not exist."""
        return psutil_member(pid) if self._has_table else _bare_member(pid)

    def variable(self, pid: int, name: str) -> str | None:
        """A variable from the environment a process was started with; None when it has none or may not be read."""
        return environment_variable(pid, name) if self._has_table else None

    def command_line(self, pid: int) -> str:
        """The whole command of a process, its words divided by spaces; empty when it is not known."""
        return psutil_command_line(pid) if self._has_table else ""

    def answers_usr1(self, pid: int) -> bool | None:
        """The system does not say which signals a process catches."""
        return None

    def boot_id(self) -> str:
        """Not known."""
        return ""

    def hardware_id(self) -> str:
        """Not known."""
        return ""

    def process_reader(self) -> ProcessReader:
        """A reader for one tree."""
        return _PortableReader(self._has_table)

    def wait_reader(self, attempt: Path) -> WaitReader:
        """Nothing is known of waits."""
        return _NoWaits()


class _NoWaits:
    def read(self, tree: TreeSample) -> TreeSample:
        return tree

    def forget(self) -> None:
        return None


class _PortableReader:
    def __init__(self, has_table: bool):
        self._has_table = has_table

    def read(self, pid: int, is_detailed: bool) -> tuple[ProcessSample | None, list[int]]:
        return psutil_sample(pid) if self._has_table else (_bare_sample(pid), [])

    def forget_others(self, tids: Set[int]) -> None:
        return None


def _bare_member(pid: int) -> Member | None:
    """A process of which nothing is known but that it is there. Without a start time, its number is all there is."""
    try:
        os.kill(pid, 0)
        session = os.getsid(pid)
    except ProcessLookupError:
        return None
    except OSError:
        session = 0
    has_ended = _has_ended(pid)
    parent_pid = 0 if has_ended is None else os.getpid()
    return Member(
        pid=pid, start_ticks=0, parent_pid=parent_pid, session=session, state="Z" if has_ended else "S", name=""
    )


def _has_ended(pid: int) -> bool | None:
    """Whether a child of this process has ended, unreaped; None when it is no child of ours."""
    if sys.platform != "linux":
        return None
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except OSError:
        return None


def _bare_sample(pid: int) -> ProcessSample | None:
    if _has_ended(pid):
        return None
    try:
        cpu_seconds = time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    except OSError:
        return None
    main = ThreadSample(tid=pid, name="", state="S", run_ns=round(cpu_seconds * 1e9))
    return ProcessSample(pid=pid, parent_pid=0, start_ticks=0, command="", cpu_seconds=cpu_seconds, threads=(main,))


# psutil, for systems where its answers can be trusted: identities, CPU times and memory.


def psutil_members() -> Iterator[Member]:
    """Every process in psutil's table."""
    import psutil

    for pid in psutil.pids():
        if member := psutil_member(pid):
            yield member


def psutil_member(pid: int) -> Member | None:
    """One process as psutil knows it."""
    import psutil

    states = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_STOPPED: "T", psutil.STATUS_DISK_SLEEP: "D"}
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status, parent_pid, name = process.status(), process.ppid(), process.name()
            started = process.create_time()
    except psutil.Error:
        return None
    try:
        session = os.getsid(pid) if hasattr(os, "getsid") else 0
    except OSError:
        session = 0
    return Member(
        pid=pid,
        start_ticks=round(started * 100),
        parent_pid=parent_pid,
        session=session,
        state=states.get(status, "S"),
        name=name,
    )


def psutil_sample(pid: int) -> tuple[ProcessSample | None, list[int]]:
    """One process and its children as psutil knows them. A thread's state is not known: quiet means that it waits."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            if status == psutil.STATUS_ZOMBIE:
                return None, []
            used, name = process.cpu_times(), process.name()
            cpu_seconds = used.user + used.system
            sample = ProcessSample(
                pid=pid,
                parent_pid=process.ppid(),
                start_ticks=round(process.create_time() * 100),
                command=name,
                cpu_seconds=cpu_seconds,
                resident_bytes=process.memory_info().rss,
                threads=(
                    ThreadSample(
                        tid=pid,
                        name=name,
                        state="T" if status == psutil.STATUS_STOPPED else "S",
                        run_ns=round(cpu_seconds * 1e9),
                    ),
                ),
            )
        return sample, [child.pid for child in process.children()]
    except psutil.Error:  # gone meanwhile, or not ours to ask
        return None, []


def environment_variable(pid: int, name: str) -> str | None:
    """A variable of a process by psutil."""
    import psutil

    try:
        return psutil.Process(pid).environ().get(name)
    except Exception:  # gone, another user's, or protected by the system: each system says so in its own way
        return None


def psutil_command_line(pid: int) -> str:
    """The command of a process by psutil."""
    import psutil

    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""
