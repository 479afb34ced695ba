"""Any training command as a run: its folder, its request, and how each attempt of it is started.

The command is not changed. Holdfast's preload folder comes first on PYTHONPATH and adds heartbeats, stacks and
fallbacks to every Python process the command starts; changed environment variables go into the environment.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.core.event_log import EventLog
from holdfast.core.records import Changes, CommandRequest, write_request
from holdfast.core.redact import is_secret
from holdfast.core.run_memory import RunMemory, key_of
from holdfast.core.runfolder import EVENTS, NODES, SETTINGS, checkpoints_folder, run_of
from holdfast.core.setting_values import NEEDLESS_WAIT
from holdfast.core.settings import DEFAULT_NODES_WAIT
from holdfast.runs.new_folder import RUNS, new_folder
from holdfast.runs.resume_options import foresee
from holdfast.runs.script_checkpoints import may_use_resume_args
from holdfast.runs.supervise import RunSpec
from holdfast.supervisor.child import Launch
from holdfast.supervisor.ladders import command_ladder
from holdfast.supervisor.members import start_ticks_of

PRELOAD = Path(holdfast.__file__).parent / "preload"

_MOST_SECONDS = 604_800  # a week
_OWN = re.compile(r"HOLDFAST_|PWD$|OLDPWD$|SHLVL$|_$|TMUX|STY$|WINDOWID$|TERM_SESSION")


def make_request(
    command: tuple[str, ...], *, nodes: int = 1, nodes_wait_seconds: float | None = None, **options: Any
) -> CommandRequest:
    """Check a command and record the folder and environment it is started from."""
    if not command:
        raise RequestError("no command given", try_next=("holdfast run -- python train.py",))
    if nodes_wait_seconds is not None and nodes == 1:
        raise invalid_settings([Problem("nodes_wait", NEEDLESS_WAIT)])
    for option, seconds in (
        ("--nodes-wait", nodes_wait_seconds),
        ("--step-timeout", options.get("step_timeout_seconds")),
    ):
        if seconds is not None and not 1 <= seconds <= _MOST_SECONDS:  # NaN fails every comparison
            raise RequestError(f"{option} {seconds} is out of range", found=f"allowed: 1 to {_MOST_SECONDS:,}")
    if shutil.which(command[0]) is None:
        raise RequestError(
            f"command {command[0]!r} not found",
            found="not on PATH" if os.sep not in command[0] else "not an executable file",
            try_next=_instead(command),
        )
    script = _script_of(command)
    if script and not Path(script).exists():
        raise RequestError(f"file {script!r} not found", found=f"looked in {Path.cwd()}")
    kept = {name: value for name, value in os.environ.items() if not _OWN.match(name) and not is_secret(name, value)}
    options |= {"nodes": nodes, "nodes_wait_seconds": nodes_wait_seconds or DEFAULT_NODES_WAIT}
    return CommandRequest(command=command, cwd=str(Path.cwd()), environment=kept, **options)


def make_folder(request: CommandRequest, folder: Path | None, name: str = "") -> Path:
    """Make the run folder with its request; refuse a folder that already holds a run."""
    if name and (name in (".", "..") or Path(name).name != name):
        raise RequestError(
            f"{name!r} is not a valid folder name under {RUNS}/", try_next=("--run FOLDER, to use any other folder",)
        )
    with new_folder(folder, name or _name_of(request.command), "--run") as made:
        write_request(made, request)
    return made.resolve()


def command_spec(request: CommandRequest) -> RunSpec:
    """How the command is started, and what may be changed about it."""

    def make_launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        return _launch(request, attempt, changes, resume)

    return RunSpec(
        kind="command",
        words=request.words,
        make_launch=make_launch,
        ladder=command_ladder(has_accelerator=has_accelerator()),
        allow_changes=request.allow_changes,
        max_attempts=request.max_attempts,
        nodes=request.nodes,
        nodes_wait_seconds=request.nodes_wait_seconds,
        step_timeout_seconds=request.step_timeout_seconds,
        clean_up=remove_own_checkpoints,
        memory=RunMemory.open(request.command) if request.remembers else None,
        # Changes that an earlier run allowed must not return where they are not allowed.
        memory_key=key_of(
            "command", request.cwd, *request.command, *(("changes allowed",) if request.allow_changes else ())
        ),
    )


def remove_own_checkpoints(run: Path) -> None:
    """Remove the checkpoints that Holdfast added to the script's own: nothing continues from them any more."""
    checkpoints = checkpoints_folder(run)
    for folder in (*checkpoints.glob("train-*"), *checkpoints.glob("fit-*"), *checkpoints.glob("loop-*")):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # missing, or not empty
        checkpoints.rmdir()


def has_accelerator() -> bool:
    """Whether this machine has an accelerator, found without importing a library."""
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def _launch(request: CommandRequest, attempt: Path, changes: Changes, resume: bool) -> Launch:
    variables = {name: str(value) for name, value in changes.items() if name.isupper()}
    factors = {name: value for name, value in changes.items() if name.endswith("_factor")}
    settings = {name: value for name, value in changes.items() if not name.isupper() and name not in factors}
    given = {"changes": settings, "environment": variables, "resume": resume, "supervisor": os.getpid()}
    given["supervisor_start_ticks"] = start_ticks_of(os.getpid())
    given["run"] = str(run_of(attempt))
    write_artifact(attempt, SETTINGS, {**given, "micro_batch_factor": 1, "eval_micro_batch_factor": 1, **factors})
    environment = {**os.environ, **request.environment, **variables}
    path = [str(PRELOAD), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    environment.setdefault("PYTHONUNBUFFERED", "1")  # so that what was printed before a kill is on disk
    if not resume and attempt.parent.name != NODES and (foreseen := foresee(request)):
        EventLog(attempt / EVENTS).write(foreseen)
    arguments = request.resume_args if resume and may_use_resume_args(request, attempt) else ()
    command = (*request.command, *arguments)
    return Launch(command, Path(request.cwd), environment, attempt, takes_interrupts=True)


def _name_of(command: tuple[str, ...]) -> str:
    script = _script_of(command)
    name = Path(script).stem if script else Path(command[0]).name
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _script_of(command: tuple[str, ...]) -> str:
    """The Python file that a command runs, if the command is `python FILE`."""
    if re.fullmatch(r"python[\d.]*", Path(command[0]).name) and len(command) > 1 and command[1].endswith(".py"):
        return command[1]
    return ""


def _instead(command: tuple[str, ...]) -> tuple[str, ...]:
    if command[0].endswith(".py"):
        return (f"holdfast run -- python {shlex.join(command)}",)
    return ("holdfast run -- python train.py",)
