"""Resumes or stops a run from its folder alone: after Ctrl-C, a kill of the supervisor, a crash or a restart."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.env import node_name
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.records import CommandRequest, read_data_sha256, read_request, write_request
from holdfast.core.runfolder import NODES, RESULT
from holdfast.core.setting_values import make_request
from holdfast.core.settings import BATCH_PARTS, TrainRequest, requested_batch_size
from holdfast.core.text import plural
from holdfast.runs.command import command_spec
from holdfast.runs.earlier_attempts import end_leftovers, is_left_running
from holdfast.runs.lease import holder
from holdfast.runs.nodes import read_leader
from holdfast.runs.run_path import require_request, require_run
from holdfast.runs.supervise import RunSpec
from holdfast.supervisor.ending import send


def command_of(run: Path) -> RunSpec:
    """The command that a run supervises, ready to be supervised again."""
    request = require_request(run)
    if isinstance(request, CommandRequest) and request.nodes > 1:  # each machine has its own command line
        request = read_request(run / NODES / node_name()) or request
    if not isinstance(request, CommandRequest):
        raise RequestError(f"{run} holds a training run, not a command", try_next=(f"holdfast resume {run}",))
    return command_spec(request)


def ask_for(run: Path, given: Mapping[str, object]) -> None:
    """Change settings that do not affect what a training run learns, such as the number of processes."""
    options = " ".join(f"--{name} {value}" for name, value in given.items())
    request = require_request(run)
    if not isinstance(request, TrainRequest):
        raise RequestError(
            f"{options} is for runs of holdfast train",
            found=f"{run} supervises a command, which decides itself how many processes it starts",
        )
    checked = make_request({"data": "-", "out": str(run), **given})
    wanted: dict[str, Any] = {name: getattr(checked, name) for name in given}
    if _has(request, wanted):
        return  # same as before, or another machine has requested the same
    if leader := read_leader(run):
        raise RequestError(
            f"{run} is running, with supervisor {leader.pid} on {leader.node}",
            try_next=(f"on {leader.host}: holdfast stop {run}", f"then: holdfast resume {run} {options}"),
        )
    now = require_request(run)  # another machine may have written it meanwhile
    if now != request and not _has(now, wanted):
        raise RequestError(
            f"another machine has just requested something other than {options}",
            found=" ".join(f"--{name} {getattr(now, name) or 1}" for name in wanted),
            try_next=(f"holdfast resume {run}, to join it",),
        )
    # Each step keeps its examples, however many processes share it from now on.
    step: dict[str, Any] = {"batch_size": requested_batch_size(request), **dict.fromkeys(BATCH_PARTS)}
    write_request(run, replace(request, **wanted, **step), data_sha256=read_data_sha256(run))


def _has(request: TrainRequest | CommandRequest, wanted: Mapping[str, object]) -> bool:
    return all((getattr(request, name, None) or 1) == value for name, value in wanted.items())


def ask_to_stop(
    run: Path, *, at_once: bool, wait_seconds: float, say: Callable[[str], None] = lambda words: None
) -> str:
    """Ask the run's supervisor to save and stop; `say` is called with what it waits for. Returns the result."""
    require_run(run)
    found = holder(run)
    if found is None and (leader := read_leader(run)):
        raise RequestError(
            f"{run} is led by a supervisor on another machine",
            found=f"pid {leader.pid} on {leader.node}",
            try_next=(f"on {leader.host}: holdfast stop {run}", "or end the job that it is part of"),
        )
    if found is None:
        if is_left_running(run):
            say("its supervisor is gone; ending the processes it left running")
        if ended := end_leftovers(run):
            return f"ended {plural(len(ended), 'process')} left by an earlier supervisor"
        state = "has ended" if (run / RESULT).exists() else "is not running"
        return f"nothing to stop: the run {state}"
    send(found, signal.SIGTERM)
    say("asked to stop immediately" if at_once else "asked to save and stop; this may take a minute")
    if at_once:
        time.sleep(0.5)
        send(found, signal.SIGTERM)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        if holder(run) is None:
            return "stopped"
        time.sleep(0.1)
    raise MachineError(
        "the run did not stop",
        found=f"supervisor {found.pid} is still running after {wait_seconds:.0f} s",
        try_next=(f"holdfast stop --now {run}",),
    )
