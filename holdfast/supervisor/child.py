"""Starts the child of an attempt: in its own session, without input, output into one file, dead when its parent dies.

The parent-death signal of Linux follows the thread that started the child, so that thread must live as long as the run.
Leaves: child.json, output.log.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.env import ATTEMPT_VARIABLE
from holdfast.core.errors import RequestError
from holdfast.core.records import ChildInfo, write_record
from holdfast.core.runfolder import OUTPUT
from holdfast.supervisor import launch as launcher
from holdfast.supervisor.members import boot_id, start_ticks_of
from holdfast.supervisor.processes import Identity
from holdfast.supervisor.spare import Spare

_ROOM, _ROOM_BYTES = ".room", 512 << 10


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start, where, with which environment, for which attempt."""

    command: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]
    attempt: Path
    takes_interrupts: bool = False  # Ctrl-C reaches it as it would without us
    spare: Spare | None = None  # a process that may be waiting to become it
    is_of_ranks: bool = False  # a launcher of our engine's ranks, whose exits say more than its own


class Child:
    """A child that this process started."""

    def __init__(self, process: "subprocess.Popen[bytes]"):
        self._process = process
        self.pid = process.pid
        self.start_ticks = start_ticks_of(process.pid) or 0

    @property
    def identity(self) -> Identity:
        """Its pid with its start time."""
        return Identity(self.pid, self.start_ticks)

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._process.poll()


def start_child(launch: Launch) -> Child:
    """Start the command of an attempt and write down its identity."""
    _refuse_missing(launch)
    launch.attempt.mkdir(parents=True, exist_ok=True)
    keep_room(launch.attempt)
    process = (
        launch.spare.take(launch.command, launch.cwd, launch.environment, launch.attempt) if launch.spare else None
    )
    process = process or _start(launch)
    child = Child(process)
    info = ChildInfo(
        pid=child.pid,
        start_ticks=child.start_ticks,
        boot_id=boot_id(),
        command=launch.command,
        cwd=str(launch.cwd),
    )
    write_record(launch.attempt, info)
    return child


def keep_room(attempt: Path) -> None:
    """Reserve some disk space, so that the evidence of a full disk can still be written."""
    with contextlib.suppress(OSError):
        (attempt / _ROOM).write_bytes(bytes(_ROOM_BYTES))


def free_room(attempt: Path) -> None:
    """Free the reserved disk space."""
    with contextlib.suppress(OSError):
        (attempt / _ROOM).unlink()


def _start(launch: Launch) -> "subprocess.Popen[bytes]":
    output = os.open(launch.attempt / OUTPUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(os.getpid()), *launch.command],
            cwd=launch.cwd,
            env={**launch.environment, ATTEMPT_VARIABLE: str(launch.attempt.resolve())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)


def _refuse_missing(launch: Launch) -> None:
    """Refuse a command that does not exist: that is an invalid request, not a failed attempt."""
    if not launch.command:
        raise RequestError("no command given", try_next=("holdfast run -- python train.py",))
    if not launch.cwd.is_dir():
        raise RequestError("the folder to run in does not exist", found=str(launch.cwd))
    name = launch.command[0]
    here = str(launch.cwd / name) if os.sep in name else name  # a path is relative to the folder the command runs in
    if shutil.which(here, path=launch.environment.get("PATH", os.defpath)) is None:
        raise RequestError(
            f"there is no command named {name!r}",
            found=f"looked in {launch.environment.get('PATH', os.defpath)}" if os.sep not in name else here,
            try_next=("holdfast run -- python train.py",),
        )
