"""Takes up a run from its folder alone: after Ctrl-C, a kill of the supervisor, a crash or a restart of the machine."""

import signal
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.env import node_name
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.request import make_request
from holdfast.core.runfolder import NODES, REQUEST, RESULT
from holdfast.runs.command import command_job, read_command_request
from holdfast.runs.earlier import end_leftovers, is_left_running
from holdfast.runs.holder import holder
from holdfast.runs.nodes import read_leader
from holdfast.runs.state import read_request
from holdfast.runs.supervise import Job
from holdfast.supervisor.ending import send


def job_of(run: Path) -> Job:
    """What the run was asked to do, ready to be supervised again."""
    request = read_request(run)
    kind = request.get("kind")
    if kind == "command":
        try:
            # Of several machines each has a command of its own.
            mine = read_artifact(run / NODES / node_name() / REQUEST) if request.get("nodes", 1) > 1 else {}
            return command_job(read_command_request(mine or request))
        except TypeError as error:
            raise RequestError(f"{run}/request.json is not understood", seen=str(error)) from None
    if kind == "train":
        job: Job = import_module("holdfast.runs.train").train_job(run)
        return job
    raise RequestError(f"{run}/request.json is of a kind that cannot be resumed", seen=f"kind {kind!r}")


def ask_for(run: Path, processes: str | None, nodes: str | None) -> None:
    """Let a training run go on with other processes or machines: what it learns does not depend on them."""
    asked = {name: value for name, value in (("processes", processes), ("nodes", nodes)) if value is not None}
    options = " ".join(f"--{name} {value}" for name, value in asked.items())
    request = read_request(run)
    if request.get("kind") != "train":
        raise RequestError(
            f"{options} is for runs of holdfast train",
            seen=f"{run} supervises a command, which says itself how many it starts",
        )
    wanted = make_request({"data": "-", "out": str(run), **asked})
    known = {name: getattr(wanted, name) for name in asked}
    if _is_asked(request, known):
        return  # as before, or another machine has asked for the same
    if leader := read_leader(run):
        raise RequestError(
            f"{run} is running, with supervisor {leader['pid']} on {leader['node']}",
            try_next=(f"on {leader['host']}: holdfast stop {run}", f"then: holdfast resume {run} {options}"),
        )
    now = read_request(run)  # who looked for a leader may have waited
    if now != request and not _is_asked(now, known):
        raise RequestError(
            f"another machine has just asked for something else than {options}",
            seen=" ".join(f"--{name} {now.get(name) or 1}" for name in known),
            try_next=(f"holdfast resume {run}, to join it",),
        )
    write_artifact(run, REQUEST, {**now, **known})


def _is_asked(request: Mapping[str, Any], known: Mapping[str, object]) -> bool:
    return all((request.get(name) or 1) == value for name, value in known.items())


def ask_to_stop(
    run: Path, *, at_once: bool, wait_seconds: float, say: Callable[[str], None] = lambda words: None
) -> str:
    """Ask the run's supervisor to stop it with a checkpoint; `say` hears what is waited for. Say what came of it."""
    read_request(run)
    found = holder(run)
    if found is None and (leader := read_leader(run)):
        raise RequestError(
            f"{run} is led by a supervisor on another machine",
            seen=f"pid {leader['pid']} on {leader['node']}",
            try_next=(f"on {leader['host']}: holdfast stop {run}", "or end the job that it is part of"),
        )
    if found is None:
        if is_left_running(run):
            say("its supervisor is gone; ending what it left running")
        ended = end_leftovers(run)
        if ended:
            return ended
        state = "has ended" if (run / RESULT).exists() else "is not running"
        return f"nothing to stop: the run {state}"
    send(found, signal.SIGTERM)
    say("asked to end at once" if at_once else "asked to save and end; that may take a minute")
    if at_once:
        time.sleep(0.5)
        send(found, signal.SIGTERM)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        if holder(run) is None:
            return "stopped"
        time.sleep(0.1)
    raise MachineError(
        "the run was asked to stop and did not",
        seen=f"supervisor {found.pid} still looks after it after {wait_seconds:.0f} s",
        try_next=(f"holdfast stop --now {run}",),
    )
