"""Ends every process of an attempt and no other: SIGTERM, SIGCONT for stopped ones, then SIGKILL.

SIGTERM goes only to the topmost processes: launchers and data loaders end their own children, and a loader that loses
its workers fails in the middle of its last checkpoint. Processes that still live after the grace period get SIGKILL,
including children born meanwhile. Right before each signal the pid and its start time are checked again, through a
pidfd where the system has them, so that a reused pid is never hit.
"""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.core.cgroups import frozen_group
from holdfast.core.observations import LeftProcess
from holdfast.supervisor.child import Child, free_room
from holdfast.supervisor.members import find_member, find_members, read_root
from holdfast.supervisor.processes import Identity, Member, this_system

_SHM = Path("/dev/shm")
_KILL_SECONDS = 3.0  # a killed process is gone in milliseconds unless the kernel holds it
_LOOK_SECONDS = 0.05
# What a killed process leaves in shared memory. Some have its pid in their name; Python's semaphores are recognized
# only by being mapped in one of our processes.
_LEFT_BEHIND = re.compile(r"(?:torch_|__KMP_REGISTERED_LIB_)(?P<pid>\d+)_|sem\.mp-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What was done, and what could not be ended."""

    asked: tuple[int, ...]  # pids that got SIGTERM
    killed: tuple[int, ...]  # pids that needed SIGKILL
    left: tuple[LeftProcess, ...] = ()  # processes that still live
    seconds: float = 0.0


def end_tree(attempt: Path, child: Child | None, grace_seconds: float = 10, known: Iterable[Identity] = ()) -> Ended:
    """End the whole tree of an attempt, within the grace and three seconds more.

    Without a `child` it is a later supervisor that ends what an earlier one left. `known` are processes that were seen
    in the tree before.
    """
    begun = time.monotonic()
    tree = _Tree(attempt, child, tuple(known))
    asked: dict[int, Identity] = {}
    if grace_seconds > 0:
        tree.signal_group(signal.SIGTERM)
    while time.monotonic() - begun < grace_seconds and (alive := tree.alive()):
        pids = {member.pid for member in alive}
        for member in alive:
            if member.parent_pid not in pids and member.pid not in asked and send(member.identity, signal.SIGTERM):
                asked[member.pid] = member.identity
            if member.state == "T":
                send(member.identity, signal.SIGCONT)  # a stopped process receives nothing but SIGKILL
        time.sleep(_LOOK_SECONDS)
    killed: dict[int, Identity] = {}
    kill_begun = time.monotonic()
    while (alive := tree.alive()) and time.monotonic() - kill_begun < _KILL_SECONDS:
        tree.signal_group(signal.SIGKILL)
        for member in alive:
            if send(member.identity, signal.SIGKILL):
                killed[member.pid] = member.identity
        time.sleep(_LOOK_SECONDS)
    free_room(attempt)
    left = tuple(_still_alive(member) for member in alive)
    if not left:
        tree.remove_left_behind()
    seconds = round(time.monotonic() - begun, 3)
    return Ended(asked=tuple(asked), killed=tuple(killed), left=left, seconds=seconds)


def send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False when it is gone or may not be reached."""
    if identity.pid <= 1 or identity.pid == os.getpid():
        return False
    pidfd: int | None = None
    try:
        if sys.platform == "linux":
            pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # an old kernel, a strict sandbox, or a Python built for one
        pass
    try:
        if not _is_same(identity):  # asked after the pidfd was opened: from here on it cannot be another process
            return False
        if sys.platform == "linux" and pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(identity.pid, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _is_same(identity: Identity) -> bool:
    found = find_member(identity.pid)
    return found is not None and found.identity == identity and not found.is_gone


class _Tree:
    """The processes of an attempt while they are being ended."""

    def __init__(self, attempt: Path, child: Child | None, known: tuple[Identity, ...]):
        self._attempt, self._child = attempt, child
        self._root = child.identity if child else read_root(attempt)
        self._known = known
        self._pids: set[int] = {self._root.pid} if self._root else set()
        self._mapped: set[int] = set()  # inodes
        blindness = this_system().blindness
        self._is_blind = blindness is not None and "descendants" in blindness.unseen

    def alive(self) -> list[Member]:
        """The processes that still run. One that was once found stays known, even when its parent is gone."""
        if self._child:
            self._child.poll()  # reaps it
        if self._is_blind:
            return self._own_child()
        found = [member for member in find_members(self._attempt, self._root, self._known) if not member.is_gone]
        for member in found:
            if member.identity not in self._known:
                self._mapped |= set(_mapped_shm(Path(f"/proc/{member.pid}/maps")))
            self._pids.add(member.pid)
        self._known = tuple({*self._known, *(member.identity for member in found)})
        return found

    def signal_group(self, number: signal.Signals) -> None:
        """Where descendants cannot be seen: send a signal to the child's process group, which it leads.

        The number of the group belongs to nobody else as long as one process is in it.
        """
        if self._is_blind and self._child:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, number)

    def _own_child(self) -> list[Member]:
        """The child of this very process, or what is left of its group."""
        if self._child is None:
            return []
        name = Path(self._attempt).name
        try:
            os.killpg(self._child.pid, 0)
        except OSError:
            return []
        return [Member(pid=self._child.pid, start_ticks=0, parent_pid=os.getpid(), session=0, state="S", name=name)]

    def remove_left_behind(self) -> None:
        """Free the shared memory that the killed processes can no longer free, unless another process has it mapped."""
        try:
            files = {file.stat().st_ino: file for file in _SHM.iterdir() if _LEFT_BEHIND.match(file.name)}
        except OSError:
            return
        ours = {inode for inode, file in files.items() if inode in self._mapped or self._has_dead_pid(file.name)}
        if not ours:
            return
        still_used = {inode for maps in Path("/proc").glob("[0-9]*/maps") for inode in _mapped_shm(maps)}
        for inode in ours - still_used:
            with contextlib.suppress(OSError):
                files[inode].unlink()

    def _has_dead_pid(self, name: str) -> bool:
        match = _LEFT_BEHIND.match(name)
        pid = int(match["pid"]) if match and match["pid"] else 0
        return pid in self._pids and find_member(pid) is None


def _mapped_shm(maps: Path) -> Iterator[int]:
    """The files of shared memory that a process has mapped, by inode: a semaphore is mapped under an earlier name."""
    try:
        text = maps.read_text(errors="replace")
    except OSError:
        return
    yield from map(int, re.findall(r"^\S+ \S+ \S+ \S+ (\d+) +/dev/shm/", text, re.MULTILINE))


def _still_alive(member: Member) -> LeftProcess:
    """A process that outlived SIGKILL, and what holds it."""
    try:
        wchan = Path(f"/proc/{member.pid}/wchan").read_text()
        tracer = re.search(r"^TracerPid:\t([1-9]\d*)", Path(f"/proc/{member.pid}/status").read_text(), re.MULTILINE)
    except OSError:
        wchan, tracer = "", None
    held_by: Literal["", "frozen_cgroup", "debugger", "kernel"] = ""
    holder = ""
    if group := frozen_group(member.pid):
        held_by, holder = "frozen_cgroup", str(group)
    elif tracer:
        held_by, holder = "debugger", tracer[1]
    elif member.state == "D":
        held_by, holder = "kernel", wchan
    return LeftProcess(pid=member.pid, name=member.name, held_by=held_by, holder=holder)
