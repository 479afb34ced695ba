"""Joins the run of several machines that one of them has begun: the same words on each, in a folder they share.

Leaves: request.json of the first machine, nodes/NAME/request.json of each.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.env import node_name
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.runfolder import NODES, REQUEST, RESULT
from holdfast.core.text import plural
from holdfast.runs.command import CommandRequest, read_command_request
from holdfast.runs.folders import take_folder

# Each machine may say otherwise only where it is, and how long it waits.
_SAME_EVERYWHERE = ("command", "resume_args", "allow_changes", "max_attempts", "step_timeout_seconds")
_OF_ONE_MACHINE = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr)(?P<joined>=.*)?")


def join_folder(request: CommandRequest, folder: Path | None) -> Path:
    """Make the folder of a run of several machines, or join the run that one of the others has begun there."""
    if folder is None:
        raise RequestError(
            "--nodes needs --run FOLDER", seen="the machines meet there", try_next=("--run /shared/FOLDER --nodes 2",)
        )
    name = node_name()
    if name in (".", "..") or Path(name).name != name:
        raise RequestError(f"HOLDFAST_NODE={name} is no name for a machine", seen="it is used as the name of a folder")
    mine = folder / NODES / name
    if (folder / REQUEST).exists():
        _require_same(request, read_artifact(folder / REQUEST), folder)
    try:
        inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if (inside and not inside & {REQUEST, NODES}) or folder.is_file():
            take_folder(folder, "--run")  # which refuses it with words
        mine.mkdir(parents=True, exist_ok=True)
        write_artifact(mine, REQUEST, {"kind": "command", **asdict(request)})
        (mine / REQUEST).chmod(0o600)  # it holds the environment
        _be_first(mine / REQUEST, folder / REQUEST)
    except OSError as error:
        raise MachineError(
            f"the run folder {folder} cannot be written",
            seen=error.strerror or str(error),
            try_next=("--run FOLDER, on storage that all machines share",),
        ) from error
    _require_same(request, read_artifact(folder / REQUEST), folder)
    return folder.resolve()


def has_finished(run: Path) -> bool:
    """Say whether a run that is to be joined is over already, as when a batch system starts its job once more."""
    return read_artifact(run / RESULT).get("state") == "finished"


def _be_first(mine: Path, first: Path) -> None:
    """Let this machine's request be the run's, unless another one's is: never half of it, never two."""
    try:
        os.link(mine, first)
    except FileExistsError:
        return
    except OSError:  # storage without links
        if not first.exists():
            write_artifact(first.parent, first.name, read_artifact(mine))
            first.chmod(0o600)


def _require_same(request: CommandRequest, begun: Mapping[str, Any], folder: Path) -> None:
    """Refuse a machine that was started with other words than the first."""
    if begun.get("kind") != "command" or begun.get("nodes", 1) != request.nodes:
        raise RequestError(
            f"--run {folder} holds another run",
            seen=f"kind {begun.get('kind')!r}, for {plural(int(begun.get('nodes', 1)), 'machine')}",
            try_next=(f"--nodes {begun.get('nodes', 1)}", "name a folder that is not there yet"),
        )
    first = read_command_request(begun)
    for name in _SAME_EVERYWHERE:
        here, there = getattr(request, name), getattr(first, name)
        if isinstance(here, tuple):
            here, there = shlex.join(_without_own_options(here)), shlex.join(_without_own_options(there))
        if here != there:
            option = "the command" if name == "command" else f"--{name.replace('_', '-').removesuffix('-seconds')}"
            raise RequestError(
                f"{option} is not the same here as on the machine that began this run",
                seen=f"there: {there}; here: {here}",
                try_next=(
                    "start the same words on every machine",
                    "name a folder that is not there yet, for another run",
                ),
            )


def _without_own_options(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that must be the same on every machine: those that say which one it is are left out."""
    words, kept = iter(command), []
    for word in words:
        if not (match := _OF_ONE_MACHINE.fullmatch(word)):
            kept.append(word)
        elif match["joined"] is None:
            next(words, "")
    return tuple(kept)
