"""Who supervises a run: one process at a time, by a lease in its folder that holds on this machine and on others.

Leaves: leases/, supervisor.json.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.disk_space import cannot_write
from holdfast.core.errors import HoldfastError
from holdfast.core.runfolder import SUPERVISOR
from holdfast.runs.identity import describe_process
from holdfast.runs.lease import AlreadyHeld, Lease, Say, machine_id, newest_lease, seen_lease, take_lease
from holdfast.runs.stopping import exit_code_of
from holdfast.supervisor.members import Identity, find_member

__all__ = ["HELD_BY_OTHER", "AlreadyHeld", "hold", "holder"]

HELD_BY_OTHER = 75  # exit code of a supervisor that was refused; sysexits calls it "try again later"


@contextmanager
def hold(
    run: Path, *, say: Say = lambda words: None, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Lease]:
    """Be the run's only supervisor, or refuse; other machines learn with its end why the run was given back."""
    last: dict[str, object] = {}
    lease: Lease | None = None
    try:
        try:
            lease = take_lease(run, say=say, is_stopped=is_stopped)
            write_artifact(run, SUPERVISOR, {**describe_process(os.getpid()), "started": round(time.time(), 3)})
        except OSError as error:
            raise cannot_write(run, error) from error
        yield lease
    except KeyboardInterrupt as asked:
        last = {
            "exit_code": exit_code_of(asked),
            "result": "stopped",
            "sentence": "stopped before an attempt was called",
        }
        raise
    except HoldfastError as error:
        last = {"exit_code": error.exit_code, "sentence": error.what + (f": {error.seen}" if error.seen else "")}
        raise
    finally:
        if lease:
            lease.close(**last)


def holder(run: Path) -> Identity | None:
    """The living supervisor of a run on this machine; None when nobody here looks after it."""
    seen = seen_lease(run, newest_lease(run))
    seen.look()
    if seen.said.get("state") != "held" or seen.said.get("machine") != machine_id():
        return None
    identity = Identity(int(seen.said["pid"]), int(seen.said["start_ticks"]))
    found = find_member(identity.pid)
    return identity if found and found.identity == identity and not found.is_gone else None
