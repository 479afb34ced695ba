"""Supervises one training run for somebody who answers for it, and ends with them: `python -m holdfast.runs.held`.

    python -m holdfast.runs.held RUN plan|model KEEPER_PID SAVE_SECONDS

SIGTERM saves and stops, as does the death of the keeper; what has not ended SAVE_SECONDS after that death is killed:
nobody renews the claim, and when it has run out the run may begin elsewhere. Imports neither torch nor Django.
Reads: request.json. Leaves: what every run leaves; refused.json where the request cannot be done.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.core.artifacts import to_json, write_artifact
from holdfast.core.errors import HoldfastError, error_record
from holdfast.core.runfolder import REFUSED
from holdfast.runs.holder import HELD_BY_OTHER, AlreadyHeld
from holdfast.runs.identity import kill_run
from holdfast.runs.stopping import Stopped
from holdfast.runs.train import plan_train, resume_train
from holdfast.supervisor.attempt import StopRequest
from holdfast.supervisor.clocks import read_clocks

STOPPED = 128 + signal.SIGTERM
_LOOK_SECONDS = 1.0


def main(run: Path, goal: str, keeper_pid: int, save_seconds: float) -> int:
    """Bring the run to its goal; the exit code says how it went."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_watch, args=(run, keeper_pid, save_seconds), daemon=True).start()
    (run / REFUSED).unlink(missing_ok=True)
    try:
        if goal == "plan":
            plan_train(run, on_event=_say)
            return 0
        return resume_train(run, on_event=_say, guard=_asked_by_signal).exit_code
    except Stopped:
        return STOPPED
    except AlreadyHeld:
        return HELD_BY_OTHER
    except HoldfastError as error:
        said = error_record(error)
        write_artifact(run, REFUSED, said)
        print(to_json(said), flush=True)
        return error.exit_code


@contextlib.contextmanager
def _asked_by_signal(stop: StopRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda asked, _: stop.ask(asked))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> None:
    raise Stopped(number)


def _watch(run: Path, keeper_pid: int, save_seconds: float) -> None:
    """Stop when the keeper is gone, and kill what takes longer than it may."""
    while os.getppid() == keeper_pid:
        time.sleep(_LOOK_SECONDS)
    deadline = read_clocks().boot_seconds + save_seconds  # a lease runs out while the machine sleeps, too
    os.kill(os.getpid(), signal.SIGTERM)
    _tell(f"the keeper is gone; saving and stopping within {save_seconds:g} s")
    while read_clocks().boot_seconds < deadline:
        time.sleep(min(_LOOK_SECONDS, save_seconds / 4))
    _tell("it has not stopped in time; the run is killed")
    kill_run(run, os.getpid())  # which spares who calls it
    os.kill(os.getpid(), signal.SIGKILL)


def _tell(words: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not keep the run alive
        print(words, flush=True)


def _say(event: str, details: Mapping[str, object]) -> None:
    if event not in ("progress", "turn", "working"):
        print(event, *(f"{name}={value}" for name, value in details.items() if name != "choices"), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
