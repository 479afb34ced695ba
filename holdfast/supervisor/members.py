"""Finds the processes of an attempt: by its session, by parentage, and by HOLDFAST_ATTEMPT in their environment.

A process is identified by its pid and start time together, because pids are reused. A daemon that left its parent and
its session still carries the attempt's folder in its environment, and is found by that when all others are gone.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.env import ATTEMPT_VARIABLE
from holdfast.core.records import ChildInfo, read_record

_PROC = Path("/proc")
_attempts: "dict[Identity, str]" = {}


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


def find_members(attempt: Path, root: Identity | None, known: Iterable[Identity] = ()) -> list[Member]:
    """Every process of the attempt, parents before children; never this one or one it descends from."""
    table, folder = {member.pid: member for member in _table()}, str(attempt.resolve())
    ours: dict[int, Member] = {}
    for identity in (*((root,) if root else ()), *known):
        found = table.get(identity.pid)
        if found and found.identity == identity:
            ours[found.pid] = found
    for member in table.values():
        if member.pid not in ours and (_is_in_session(root, member, table) or _is_of(folder, member)):
            ours[member.pid] = member
    _add_descendants(ours, table)
    for pid in _own_line(table):
        ours.pop(pid, None)
    return sorted(ours.values(), key=lambda member: (member.start_ticks, member.pid))


def find_member(pid: int) -> Member | None:
    """One process of the table; None if it does not exist."""
    if sys.platform != "linux":
        return next((member for member in _table() if member.pid == pid), None)
    return _read_stat(pid)


def start_ticks_of(pid: int) -> int | None:
    """When a process was started; None when it is gone."""
    member = find_member(pid)
    return member.start_ticks if member else None


def attempt_of(pid: int) -> str:
    """The attempt folder in a process's environment; empty when it has none or may not be read."""
    name = ATTEMPT_VARIABLE.encode() + b"="
    try:
        if sys.platform == "linux":
            environ = (_PROC / str(pid) / "environ").read_bytes()
            return next((os.fsdecode(item[len(name) :]) for item in environ.split(b"\0") if item.startswith(name)), "")
        import psutil

        return psutil.Process(pid).environ().get(ATTEMPT_VARIABLE, "")
    except Exception:  # gone, another user's, or protected by the system: each system says so in its own way
        return ""


def read_root(attempt: Path) -> Identity | None:
    """The child that an attempt's folder names; None when there was none, or the machine was restarted since."""
    child = read_record(attempt, ChildInfo)
    return Identity(child.pid, child.start_ticks) if child and child.boot_id == boot_id() else None


def boot_id() -> str:
    """Identifies this start of the machine; empty where the system does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_of(folder: str, member: Member) -> bool:
    if sys.platform == "linux":
        return not member.is_gone and attempt_of(member.pid) == folder
    # Elsewhere an environment costs a slow call each, and end_tree asks twenty times a second.
    if member.identity not in _attempts:
        _attempts[member.identity] = attempt_of(member.pid)
    return not member.is_gone and _attempts[member.identity] == folder


def _is_in_session(root: Identity | None, member: Member, table: dict[int, Member]) -> bool:
    """False when the number was used again: then another leader has it, or the member is older than our session."""
    if root is None or member.session != root.pid:
        return False
    leader = table.get(root.pid)
    return member.start_ticks >= root.start_ticks and (leader is None or leader.identity == root)


def _add_descendants(ours: dict[int, Member], table: dict[int, Member]) -> None:
    children: dict[int, list[Member]] = {}
    for member in table.values():
        children.setdefault(member.parent_pid, []).append(member)
    waiting = list(ours)
    while waiting:
        for member in children.get(waiting.pop(), ()):
            if member.pid not in ours:
                ours[member.pid] = member
                waiting.append(member.pid)


def _own_line(table: dict[int, Member]) -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        if pid not in table:
            return
        pid = table[pid].parent_pid
    yield 1


def _table() -> Iterator[Member]:
    if sys.platform != "linux":
        yield from _psutil_table()
        return
    for folder in _PROC.glob("[0-9]*"):
        if member := _read_stat(int(folder.name)):
            yield member


def _read_stat(pid: int) -> Member | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold spaces and brackets
    fields = rest.split()
    return Member(
        pid=pid,
        start_ticks=int(fields[19]),
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        name=name,
    )


def _psutil_table() -> Iterator[Member]:
    import psutil

    states = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_STOPPED: "T", psutil.STATUS_DISK_SLEEP: "D"}
    for process in psutil.process_iter(["pid", "ppid", "create_time", "status", "name"]):
        info = process.info
        try:
            session = os.getsid(process.pid)
        except OSError:
            session = 0
        yield Member(
            pid=process.pid,
            start_ticks=round((info["create_time"] or 0) * 100),
            parent_pid=info["ppid"] or 0,
            session=session,
            state=states.get(info["status"], "S"),
            name=info["name"] or "",
        )
