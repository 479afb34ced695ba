"""Writes the stacks of every process of an attempt, within a time limit and without making anything worse.

1. `py-spy dump --nonblocking`: pauses nothing, needs no help of the process, works on stopped and frozen ones too.
2. `py-spy dump --native`, only for a hung process (it pauses it for a third of a second) and never where a thread
   waits in the kernel or is stopped: it would wait with it. Only this one shows OpenMP, rayon and mutexes.
3. SIGUSR1, where there is no Python stack yet, to a process that catches it with our handler: it would kill any other
   process.
On macOS `sample` takes the place of py-spy, which needs root there and shows no native frames; SIGUSR1 gives the
Python stacks next to it.

Leaves: stacks/spy-PID.txt, stacks/native-PID.txt. What faulthandler writes is in stacks/python-PID.txt.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.core.runfolder import STACKS
from holdfast.supervisor.ending import send
from holdfast.supervisor.mac_waits import run_sample
from holdfast.supervisor.members import find_members
from holdfast.supervisor.processes import Identity, Member, this_system

_MOST_PROCESSES = 32
_SPY_SECONDS = 3.0
_AT_ONCE = 2


def dump_stacks(
    attempt: Path,
    root: Identity | None,
    *,
    native: bool,
    first: Iterable[int] = (),
    limit_seconds: float = 7.0,
) -> tuple[Path, ...]:
    """Write the stacks of the attempt's processes, those in `first` in that order before others; give the files."""
    deadline = time.monotonic() + limit_seconds
    folder = attempt / STACKS
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {pid: place for place, pid in reversed(list(enumerate(first)))}
    members = [member for member in find_members(attempt, root) if not member.is_gone]
    members = sorted(members, key=lambda member: wanted.get(member.pid, len(wanted)))[:_MOST_PROCESSES]
    if sys.platform == "darwin":
        files = _each(members, lambda member: _sample(member, folder, deadline))
    else:
        files = _each(members, lambda member: _spy(member, folder, deadline, native=False))
        if native:
            movable = [member for member in members if _can_be_paused(member)]
            for some in (movable[:1], movable[1:]):  # the first alone: on a busy machine it may be the only one
                files |= _each(some, lambda member: _spy(member, folder, deadline, native=True))
    # `sample` shows no Python frames, so on macOS everyone is asked.
    is_native_only = sys.platform == "darwin"
    asked = [
        member for member in members if (is_native_only or member.pid not in files) and _answers_usr1(member, folder)
    ]
    for member in asked:
        send(member.identity, signal.SIGUSR1)
    if asked and deadline > time.monotonic():
        time.sleep(0.3)  # faulthandler needs no lock and answers at once, or never
    return tuple(sorted({*files.values(), *(folder / f"python-{member.pid}.txt" for member in asked)}))


def find_spy() -> str | None:
    """The path of py-spy: next to this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _each(members: list[Member], dump: Callable[[Member], Path | None]) -> dict[int, Path]:
    if not members:
        return {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(dump, members))
    return {member.pid: file for member, file in zip(members, answers, strict=True) if file}


def _spy(member: Member, folder: Path, deadline: float, *, native: bool) -> Path | None:
    spy = find_spy()
    if spy is None:
        return None
    name, option = ("native", "--native") if native else ("spy", "--nonblocking")
    command = [spy, "dump", option, "--pid", str(member.pid)]
    return _written(folder / f"{name}-{member.pid}.txt", command, deadline)


def _sample(member: Member, folder: Path, deadline: float) -> Path | None:
    text = run_sample(member.pid, max(0.0, deadline - time.monotonic()))
    if not text:
        return None
    file = folder / f"native-{member.pid}.txt"
    file.write_text(text, encoding="utf-8")
    return file


def _written(file: Path, command: list[str], deadline: float) -> Path | None:
    """Run a tool and keep its output; a tool that does not finish in time is killed."""
    limit = min(_SPY_SECONDS if "--nonblocking" in command else 10.0, deadline - time.monotonic())
    if limit <= 0:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        answer = subprocess.run(command, capture_output=True, timeout=limit, stdin=subprocess.DEVNULL, check=False)
        if answer.returncode == 0 and answer.stdout.strip():
            file.write_bytes(answer.stdout)
            return file
    return None


def _can_be_paused(member: Member) -> bool:
    """False if a thread waits in the kernel or is stopped: an attaching tool would wait for it forever."""
    for stat in Path(f"/proc/{member.pid}/task").glob("*/stat"):
        try:
            state = stat.read_text(errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state in "DTt":
            return False
    return True


def _answers_usr1(member: Member, folder: Path) -> bool:
    """True when the signal is caught, and by the handler that writes into our file."""
    is_armed = (folder / f"python-{member.pid}.txt").exists()
    return is_armed and this_system().answers_usr1(member.pid) is not False
