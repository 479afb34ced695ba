"""Identifies a process, also in a file, so that a later one with the same pid is not mistaken for it."""

import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.runfolder import CHILD
from holdfast.supervisor.ending import send
from holdfast.supervisor.members import boot_id, find_member, find_members, read_root, start_ticks_of
from holdfast.supervisor.processes import Identity


def describe_process(pid: int) -> dict[str, Any]:
    """What a file must hold to recognize a process later."""
    return {"pid": pid, "start_ticks": start_ticks_of(pid), "boot_id": boot_id(), "host": socket.gethostname()}


def find_process(known: Mapping[str, Any]) -> Identity | None:
    """The process that a file names, if it is still alive on this machine."""
    try:
        identity = Identity(int(known["pid"]), int(known["start_ticks"]))
    except (KeyError, TypeError, ValueError):
        return None
    if known.get("boot_id") != boot_id():
        return None
    found = find_member(identity.pid)
    return identity if found and found.identity == identity and not found.is_gone else None


def signal_process(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process."""
    return send(identity, number)


def end_process(identity: Identity, grace_seconds: float) -> None:
    """Ask a process to end, and kill it when it does not."""
    known = {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": boot_id()}
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        send(identity, number)
        deadline = time.monotonic() + seconds
        while find_process(known) and time.monotonic() < deadline:
            time.sleep(0.05)


def kill_run(run: Path, supervisor_pid: int) -> None:
    """Kill a supervisor and all it started, on this machine only, without writing anything into the run folder."""
    ticks = start_ticks_of(supervisor_pid)
    supervisor = Identity(supervisor_pid, ticks) if ticks is not None else None
    if supervisor:
        send(supervisor, signal.SIGSTOP)  # otherwise it would report the death of its child as a failure
    for attempt in [child.parent for child in run.rglob(CHILD)]:
        for member in find_members(attempt, read_root(attempt)):
            send(member.identity, signal.SIGKILL)
    if supervisor:
        send(supervisor, signal.SIGKILL)
