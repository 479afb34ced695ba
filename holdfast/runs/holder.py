"""Who supervises a run: one process at a time, held by a lock that its death frees and a lease for other machines.

Leaves: lock, supervisor.json, leases/.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import HoldfastError, MachineError
from holdfast.core.runfolder import LOCK, SUPERVISOR
from holdfast.runs.lease import AlreadyHeld, Lease, Say, take_lease
from holdfast.supervisor.members import Identity, boot_id, find_member, start_ticks_of

__all__ = ["HELD_BY_OTHER", "AlreadyHeld", "hold", "holder", "is_held"]

HELD_BY_OTHER = 75  # exit code of a supervisor that was refused; sysexits calls it "try again later"
_TRIES, _TRY_SECONDS = 5, 0.02


_held: dict[Path, Lease] = {}  # by this process


@contextmanager
def hold(
    run: Path, *, say: Say = lambda words: None, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Lease]:
    """Be the run's only supervisor, or refuse. Who holds it already may take it again."""
    if (known := _held.get(run.resolve())) is not None:
        yield known
        return
    try:
        file = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _cannot_write(run, error) from error
    try:
        try:
            _lock(file)
        except OSError:
            raise AlreadyHeld(
                "another supervisor already looks after this run",
                seen=_words(run),
                try_next=(f"holdfast watch {run}", f"holdfast stop {run}"),
            ) from None
        pid = os.getpid()
        known_by = {"pid": pid, "start_ticks": start_ticks_of(pid), "boot_id": boot_id(), "host": socket.gethostname()}
        try:
            lease = take_lease(run, say=say, is_stopped=is_stopped)
            write_artifact(run, SUPERVISOR, {**known_by, "started": round(time.time(), 3)})
        except OSError as error:
            raise _cannot_write(run, error) from error
        with _leading(run.resolve(), lease):
            yield lease
    finally:
        os.close(file)  # which frees the lock


@contextmanager
def _leading(run: Path, lease: Lease) -> Iterator[None]:
    """Keep the lease while the run is held; other machines learn with its end why it was given back."""
    _held[run] = lease
    last: dict[str, object] = {}
    try:
        yield
    except HoldfastError as error:
        last = {"exit_code": error.exit_code, "sentence": error.what + (f": {error.seen}" if error.seen else "")}
        raise
    finally:
        del _held[run]
        lease.close(**last)


def holder(run: Path) -> Identity | None:
    """The living supervisor of a run on this machine; None when nobody looks after it."""
    try:
        known = json.loads((run / SUPERVISOR).read_text(encoding="utf-8"))
        identity = Identity(int(known["pid"]), int(known["start_ticks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if known.get("boot_id") != boot_id():
        return None
    found = find_member(identity.pid)
    return identity if found and found.identity == identity and not found.is_gone and is_held(run) else None


def is_held(run: Path) -> bool:
    """Say whether some process holds the run's lock."""
    try:
        file = os.open(run / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _lock(file: int) -> None:
    """Take the lock, at a second try or third: who only asks whether it is held has it too, for an instant."""
    for tries_left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if not tries_left:
                raise
            time.sleep(_TRY_SECONDS)


def _cannot_write(run: Path, error: OSError) -> MachineError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return MachineError(
        "the run's folder cannot be written",
        seen=f"{error.strerror} ({run})",
        try_next=(f"make room, then: holdfast resume {run}",) if is_full else (),
        slug="disk-full" if is_full else "",
    )


def _words(run: Path) -> str:
    found = holder(run)
    return f"its pid is {found.pid}" if found else f"{run / LOCK} is held"
