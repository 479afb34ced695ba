"""The supervisor of an agent's run, a child process: `python -m holdfast.runs.agent_child`.

    python -m holdfast.runs.agent_child RUN plan|model AGENT_PID SAVE_SECONDS

SIGTERM saves and stops the run, and so does the death of the agent. Processes that have not ended SAVE_SECONDS after
that death are killed: the lease is no longer renewed, and when it expires the run may start elsewhere. Imports neither
torch nor Django. Reads request.json; writes what every run writes, and refused.json if the request cannot be met.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core.artifacts import to_json, write_artifact
from holdfast.core.errors import HoldfastError, error_record
from holdfast.core.events import MOVING, Event, Planned
from holdfast.core.parent_death import wait_for_exit
from holdfast.core.runfolder import REFUSED
from holdfast.runs.lease import HELD_BY_OTHER, AlreadyHeld
from holdfast.runs.process_identity import kill_run
from holdfast.runs.stop_signals import Stopped
from holdfast.runs.train_run import plan_train, resume_train
from holdfast.supervisor.attempt import StopRequest
from holdfast.supervisor.clocks import read_clocks

STOPPED = 128 + signal.SIGTERM
_POLL_SECONDS = 1.0


def main(run: Path, goal: str, agent_pid: int, save_seconds: float) -> int:
    """Bring the run to its goal; the exit code says how it went."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_watch_agent, args=(run, agent_pid, save_seconds), daemon=True).start()
    (run / REFUSED).unlink(missing_ok=True)
    try:
        if goal == "plan":
            plan_train(run, on_event=_print_event)
            return 0
        return resume_train(run, on_event=_print_event, guard=_stop_on_signal).exit_code
    except Stopped:
        return STOPPED
    except AlreadyHeld:
        return HELD_BY_OTHER
    except HoldfastError as error:
        record = error_record(error)
        write_artifact(run, REFUSED, record)
        print(to_json(record), flush=True)
        return error.exit_code


@contextlib.contextmanager
def _stop_on_signal(stop: StopRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda asked, _: stop.ask(asked))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> None:
    raise Stopped(number)


def _watch_agent(run: Path, agent_pid: int, save_seconds: float) -> None:
    """Stop when the agent is gone, and kill what has not stopped in time."""
    wait_for_exit(agent_pid)
    deadline = read_clocks().boot_seconds + save_seconds  # a lease also expires while the machine sleeps
    os.kill(os.getpid(), signal.SIGTERM)
    _log(f"the agent is gone; saving and stopping within {save_seconds:g} s")
    while read_clocks().boot_seconds < deadline:
        time.sleep(min(_POLL_SECONDS, save_seconds / 4))
    _log("not stopped in time; killing the run")
    kill_run(run, os.getpid())  # which spares its caller
    os.kill(os.getpid(), signal.SIGKILL)


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not keep the run alive
        print(text, flush=True)


def _print_event(event: Event) -> None:
    if not isinstance(event, (*MOVING, Planned)):
        print(msgspec.json.encode(event, enc_hook=str).decode(), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
