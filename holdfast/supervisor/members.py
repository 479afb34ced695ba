"""Finds the processes of an attempt: by its session, by parentage, and by HOLDFAST_ATTEMPT in their environment.

A process is identified by its pid and start time together, because pids are reused. A daemon that left its parent and
its session still carries the attempt's folder in its environment, and is found by that when all others are gone.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.core.env import ATTEMPT_VARIABLE
from holdfast.core.records import ChildInfo, read_record
from holdfast.supervisor.processes import Identity, Member, this_system


def find_members(attempt: Path, root: Identity | None, known: Iterable[Identity] = ()) -> list[Member]:
    """Every process of the attempt, parents before children; never this one or one it descends from."""
    table, folder = {member.pid: member for member in this_system().members()}, str(attempt.resolve())
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
    return this_system().find_member(pid)


def start_ticks_of(pid: int) -> int | None:
    """When a process was started; None when it is gone."""
    member = find_member(pid)
    return member.start_ticks if member else None


def attempt_of(pid: int) -> str:
    """The attempt folder in a process's environment; empty when it has none or may not be read."""
    return this_system().variable(pid, ATTEMPT_VARIABLE) or ""


def read_root(attempt: Path) -> Identity | None:
    """The child that an attempt's folder names; None when there was none, or the machine was restarted since."""
    child = read_record(attempt, ChildInfo)
    if child is None or child.boot_id != boot_id():
        return None
    # Without a start time the number may belong to another process by now.
    return Identity(child.pid, child.start_ticks) if child.start_ticks else None


def boot_id() -> str:
    """Identifies this start of the machine; empty where the system does not say."""
    return this_system().boot_id()


def _is_of(folder: str, member: Member) -> bool:
    return not member.is_gone and attempt_of(member.pid) == folder


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
