"""Samples a process tree: what every thread does, its CPU time, where it waits.

What can be seen depends on the system: `linux.py` reads /proc, `macos.py` asks libproc, and `portable.py` has CPU
times alone. All give the values of this file, so nothing above them asks on which system it runs. Sampling attaches to
nothing, stops nothing, and needs no privileges for the user's own processes.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from holdfast.core.observations import Blindness, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSample:
    """One thread at one moment."""

    tid: int
    name: str
    state: str  # R S D T t Z as in /proc
    run_ns: int = 0  # on a processor, since it was born
    wait_ns: int = 0  # runnable, but without a processor
    turns: int = 0  # times it was given a processor; a number that changes whenever it had one
    wchan: str = ""  # the kernel function it waits in
    syscall: tuple[int, ...] | None = None  # number, six arguments, stack pointer, program counter; None when running


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One process at one moment; its main thread comes first."""

    pid: int
    parent_pid: int
    start_ticks: int  # since boot on Linux; elsewhere hundredths of a second since 1970
    command: str  # the kernel's short name of it
    cpu_seconds: float  # with those of children it has waited for
    wait_ns: int = 0  # of all its threads: runnable without a processor; where the system does not say it of each
    io_bytes: int = 0
    faults: int = 0  # pages it was given
    resident_bytes: int = 0
    catches_usr1: bool | None = None  # None where the system does not say
    has_alarm: bool = False  # it catches SIGALRM or has a timer of the system: a signal may wake it any time
    is_other_program: bool = False  # not a copy of its parent, nor started to work for it (multiprocessing)
    tracer_pid: int = 0  # the debugger that is attached; 0 without one
    threads: tuple[ThreadSample, ...] = ()

    @property
    def identity(self) -> "Identity":
        """Its pid with its start time."""
        return Identity(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSample:
    """A process and its descendants at one moment."""

    at_seconds: float  # on the monotonic clock
    processes: tuple[ProcessSample, ...]  # root first
    waits: Mapping[int, Wait] = field(default_factory=dict)  # by thread; filled in only when the tree is quiet

    @property
    def resident_bytes(self) -> int:
        """Memory of all of them; pages they share are counted more than once."""
        return sum(process.resident_bytes for process in self.processes)


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int  # since boot on Linux; elsewhere hundredths of a second since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process as the system's table shows it."""

    pid: int
    start_ticks: int
    parent_pid: int
    session: int
    state: str  # R S D T t Z X I, as in /proc
    name: str

    @property
    def identity(self) -> Identity:
        """Its pid with its start time."""
        return Identity(self.pid, self.start_ticks)

    @property
    def is_gone(self) -> bool:
        """True for a process that is only an entry in the table."""
        return self.state in "ZX"


class ProcessReader(Protocol):
    """Reads the processes of one tree, again and again; it may keep what has not changed."""

    def read(self, pid: int, is_detailed: bool) -> tuple[ProcessSample | None, list[int]]:
        """One process, and the pids of its children; None when it is gone."""

    def forget_others(self, tids: Set[int]) -> None:
        """Only these threads still exist."""


class WaitReader(Protocol):
    """Finds out what the threads of one tree wait for."""

    def read(self, tree: TreeSample) -> TreeSample:
        """The same sample with what each of its threads waits for, as far as it is known by now. Never blocks."""

    def forget(self) -> None:
        """The tree has moved: what was known of its waits is over."""


class System(Protocol):
    """What can be asked about processes on one kind of operating system."""

    blindness: Blindness | None  # what this system does not show; None when it shows everything

    def members(self) -> Iterator[Member]:
        """Every process that can be seen."""

    def find_member(self, pid: int) -> Member | None:
        """One process; None if it does not exist."""

    def variable(self, pid: int, name: str) -> str | None:
        """A variable from the environment a process was started with; None when it has none or may not be read."""

    def command_line(self, pid: int) -> str:
        """The whole command of a process, its words divided by spaces; empty when it is gone."""

    def answers_usr1(self, pid: int) -> bool | None:
        """Whether a process catches SIGUSR1; None when the system does not say."""

    def boot_id(self) -> str:
        """Identifies this start of the machine; empty where the system does not say."""

    def hardware_id(self) -> str:
        """Identifies the machine over its restarts; empty where the system does not say."""

    def process_reader(self) -> ProcessReader:
        """A reader for one tree."""

    def wait_reader(self, attempt: Path) -> WaitReader:
        """A reader of the waits in one attempt's tree."""


def this_system() -> System:
    """The system this process runs on."""
    return _system_of(sys.platform)


@cache
def _system_of(platform: str) -> System:
    if platform == "linux" and Path("/proc/self/stat").exists():
        from holdfast.supervisor.linux import LinuxSystem

        return LinuxSystem()
    if platform == "darwin":
        from holdfast.supervisor.macos import MacSystem

        return MacSystem()
    from holdfast.supervisor.portable import PortableSystem

    return PortableSystem()


def sample_tree(root_pid: int) -> TreeSample:
    """Take one sample of a process and its descendants."""
    return TreeReader(root_pid).sample()


class TreeReader:
    """Takes samples of one tree, and keeps hold of descendants whose parent has gone."""

    def __init__(self, root_pid: int):
        self._root_pid = root_pid
        self._known: dict[int, int] = {}  # start time by pid
        self._reader = this_system().process_reader()

    def also(self, pids: Iterable[int]) -> bool:
        """Sample these processes too from now on; True when one of them is new."""
        new = set(pids) - self._known.keys()
        found = (this_system().find_member(pid) for pid in new)
        self._known.update({member.pid: member.start_ticks for member in found if member})
        return bool(new)

    def sample(self, now: float | None = None, is_detailed: bool = True) -> TreeSample:
        """Take one sample; one without processes when the root is gone.

        A sample that is not detailed may keep threads that had no turn since the last one as they were.
        """
        at_seconds = time.monotonic() if now is None else now
        found: dict[int, ProcessSample] = {}
        waiting = [self._root_pid, *(pid for pid in self._known if pid != self._root_pid)]
        while waiting:
            pid = waiting.pop(0)
            if pid in found:
                continue
            process, children = self._reader.read(pid, is_detailed)
            if process is None or self._known.setdefault(pid, process.start_ticks) != process.start_ticks:
                self._known.pop(pid, None)  # gone, or its number belongs to another now
                continue
            found[pid] = process
            waiting += children
        for pid in self._known.keys() - found.keys():
            del self._known[pid]
        self._reader.forget_others({thread.tid for process in found.values() for thread in process.threads})
        return TreeSample(at_seconds=at_seconds, processes=tuple(found.values()))
