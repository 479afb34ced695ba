"""The watcher on macOS: threads, times, disk and footprint from libproc, identities that survive a new host name.

The kernel says that a thread waits, but not for what; that is read from stacks, see `mac_waits.py`. Where libproc
cannot be loaded, `/bin/ps -M` (set-user-ID root, about 20 ms) and psutil answer instead. psutil's own status of a
process is not used: it is a guess that calls every waiting process "running" (giampaolo/psutil#2675).
"""

import ctypes
import dataclasses
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from holdfast.core.observations import Blindness
from holdfast.supervisor.libproc import BsdProcess, LibProc, MachThread, ProcessUsage
from holdfast.supervisor.mac_waits import StackWaits
from holdfast.supervisor.portable import (
    environment_variable,
    psutil_command_line,
    psutil_member,
    psutil_members,
    psutil_sample,
)
from holdfast.supervisor.processes import Identity, Member, ProcessReader, ProcessSample, ThreadSample, WaitReader

_ANSWER_SECONDS = 5.0
_PS_THREAD = re.compile(
    r"^(?:\S+)?\s+\d+\s+(?:\S+\s+)?[\d.]+\s+(?P<state>[A-Z]\S*)\s+\d+\S*\s+(?P<system>[\d:.]+)\s+(?P<user>[\d:.]+)"
)
_PLATFORM_UUID = re.compile(r'"IOPlatformUUID" = "([0-9A-Fa-f-]+)"')
# U is an uninterruptible wait, I a process idle for more than 20 seconds (ps(1)).
_PS_STATES = {"R": "R", "U": "D", "T": "T", "Z": "Z", "S": "S", "I": "S"}
# Numbers of threads are no pids: they start here, so that none is taken for a process's main thread.
OTHER_THREADS = 1 << 32
_CLOCK_SLACK_NS = 10_000_000
_YOUNG_SECONDS = 2.0


class MacSystem:
    """What macOS shows of the user's own processes."""

    blindness: Blindness | None = Blindness(system="macos", unseen=("wait_targets_without_stacks",))

    def __init__(self) -> None:
        self._libproc = _load_libproc()
        self._variables: dict[tuple[Identity, str], str | None] = {}

    def members(self) -> Iterator[Member]:
        """Every process that can be seen."""
        if self._libproc is None:
            yield from psutil_members()
            return
        for pid in self._libproc.pids():
            if member := self.find_member(pid):
                yield member

    def find_member(self, pid: int) -> Member | None:
        """One process; None if it does not exist."""
        if self._libproc is None:
            return psutil_member(pid)
        found = self._libproc.process(pid)
        if found is None:
            return None
        try:
            session = os.getsid(pid)
        except OSError:
            session = 0
        return Member(
            pid=pid,
            start_ticks=found.start_ticks,
            parent_pid=found.parent_pid,
            session=session,
            state=_state(found),
            name=found.name,
        )

    def variable(self, pid: int, name: str) -> str | None:
        """A variable from the environment a process was started with; None when it has none or may not be read.

        The call is slow and the tree is ended with twenty samples a second, so answers are kept; those about a process
        that has only just begun are not: it may become another program yet.
        """
        member = self.find_member(pid)
        if member is None:
            return None
        key = member.identity, name
        if key not in self._variables:
            found = environment_variable(pid, name)
            if found is None and time.time() - member.start_ticks / 100 < _YOUNG_SECONDS:
                return None
            self._variables[key] = found
        return self._variables[key]

    def command_line(self, pid: int) -> str:
        """The whole command of a process, its words divided by spaces; empty when it is gone."""
        return psutil_command_line(pid)

    def answers_usr1(self, pid: int) -> bool | None:
        """The system does not say which signals a process catches."""
        return None

    def boot_id(self) -> str:
        """Identifies this start of the machine."""
        return read_sysctl("kern.bootsessionuuid")

    def hardware_id(self) -> str:
        """The hardware's own UUID."""
        found = _PLATFORM_UUID.search(_output("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"))
        return found[1] if found else ""

    def process_reader(self) -> ProcessReader:
        """A reader for one tree."""
        return _MacReader(self._libproc) if self._libproc else _PsReader()

    def wait_reader(self, attempt: Path) -> WaitReader:
        """A reader of waits, which takes its time for stacks."""
        return StackWaits(attempt, self._libproc)


class _Turns:
    """Counts the samples in which a thread had a processor: macOS counts context switches of whole processes only."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # by thread: what it ran, and how often that grew

    def count(self, tid: int, run_ns: int) -> int:
        """How often it ran so far, to be compared with a later answer."""
        before, turns = self._seen.get(tid, (run_ns, 0))
        self._seen[tid] = run_ns, turns + (run_ns != before)
        return self._seen[tid][1]

    def forget_others(self, tids: Set[int]) -> None:
        self._seen = {tid: seen for tid, seen in self._seen.items() if tid in tids}


class _MacReader:
    """Reads a tree with libproc."""

    def __init__(self, libproc: LibProc):
        self._libproc, self._turns = libproc, _Turns()

    def read(self, pid: int, is_detailed: bool) -> tuple[ProcessSample | None, list[int]]:
        found = self._libproc.process(pid)
        if found is None or found.is_zombie:
            return None, []
        used = self._libproc.usage(pid) or _NOTHING_USED
        cpu_ns = used.cpu_ns + used.child_cpu_ns
        sample = ProcessSample(
            pid=pid,
            parent_pid=found.parent_pid,
            start_ticks=found.start_ticks,
            command=found.name,
            cpu_seconds=cpu_ns / 1e9,
            wait_ns=max(0, used.runnable_ns - used.cpu_ns),
            io_bytes=used.io_bytes,
            faults=used.faults + used.page_ins,
            resident_bytes=used.footprint_bytes,
            # The debugger's pid is not told; its own parent stands for it.
            tracer_pid=found.parent_pid if found.is_traced else 0,
            threads=self._threads(found, used.cpu_ns),
        )
        return sample, self._libproc.children(pid)

    def forget_others(self, tids: Set[int]) -> None:
        self._turns.forget_others(tids)

    def _threads(self, process: BsdProcess, cpu_ns: int) -> tuple[ThreadSample, ...]:
        found = self._libproc.threads(process.pid) or [MachThread(tid=0, name="", state="S", run_ns=cpu_ns)]
        # Kernels before macOS 10.15 gave times that had overflowed; then only the process's own count.
        is_sound = sum(one.run_ns for one in found) <= cpu_ns + cpu_ns // 20 + _CLOCK_SLACK_NS
        held = _state(process) if process.is_stopped else ""
        threads = []
        for place, one in enumerate(found):
            tid = OTHER_THREADS + one.tid if place else process.pid
            threads.append(
                ThreadSample(
                    tid=tid,
                    name=one.name or process.name,
                    state=held or one.state,
                    run_ns=one.run_ns if is_sound else 0,
                    turns=self._turns.count(tid, one.run_ns),
                )
            )
        return tuple(threads)


class _PsReader:
    """Reads a tree with `ps -M` and psutil."""

    def __init__(self) -> None:
        self._turns = _Turns()

    def read(self, pid: int, is_detailed: bool) -> tuple[ProcessSample | None, list[int]]:
        sample, children = psutil_sample(pid)
        if sample is None:
            return None, []
        threads = tuple(
            ThreadSample(
                tid=OTHER_THREADS + pid * 1000 + place if place else pid,
                name=sample.command,
                state=state,
                run_ns=run_ns,
                turns=self._turns.count(OTHER_THREADS + pid * 1000 + place if place else pid, run_ns),
            )
            for place, (state, run_ns) in enumerate(read_ps_threads(_output("/bin/ps", "-M", "-p", str(pid))))
        )
        return sample if not threads else _with_threads(sample, threads), children

    def forget_others(self, tids: Set[int]) -> None:
        self._turns.forget_others(tids)


def read_ps_threads(text: str) -> list[tuple[str, int]]:
    """State and nanoseconds of each thread that `ps -M` lists, the main thread first."""
    found = (_PS_THREAD.match(line) for line in text.splitlines()[1:])
    return [
        (_PS_STATES.get(row["state"][0], "S"), _clock_ns(row["system"]) + _clock_ns(row["user"]))
        for row in found
        if row
    ]


def read_sysctl(name: str) -> str:
    """A text that the kernel keeps under a name; empty when there is none."""
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return _output("/usr/sbin/sysctl", "-n", name).strip()
    buffer, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    if call(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return buffer.value.decode(errors="replace")


_NOTHING_USED = ProcessUsage(
    cpu_ns=0, child_cpu_ns=0, runnable_ns=0, io_bytes=0, page_ins=0, faults=0, footprint_bytes=0
)


def _load_libproc() -> LibProc | None:
    """The library; None where it cannot be loaded or does not know this process."""
    try:
        found = LibProc()
    except (OSError, AttributeError):
        return None
    return found if found.process(os.getpid()) else None


def _state(process: BsdProcess) -> str:
    if process.is_zombie:
        return "Z"
    if process.is_stopped:
        return "t" if process.is_traced else "T"
    return "S"


def _with_threads(sample: ProcessSample, threads: Sequence[ThreadSample]) -> ProcessSample:
    return dataclasses.replace(sample, threads=tuple(threads))


def _clock_ns(text: str) -> int:
    """The nanoseconds of "1:02.34", minutes and seconds."""
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part or 0)
    return round(seconds * 1e9)


def _output(*command: str) -> str:
    """What a tool of the system prints; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
