"""Joins the run of several machines that one of them has begun: the same words on each, in a folder they share.

Leaves: request.json of the first machine, nodes/NAME/request.json of each.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, to_plain, write_artifact
from holdfast.core.disk_space import cannot_write
from holdfast.core.env import node_name
from holdfast.core.errors import RequestError, set_to
from holdfast.core.request import DATA_SHA256, FIELDS, TrainRequest, to_saved
from holdfast.core.runfolder import NODES, REQUEST, RESULT
from holdfast.core.text import option, plural
from holdfast.runs.command import CommandRequest
from holdfast.runs.folders import take_folder

# Each machine may say otherwise only where it is, and how long it waits.
_SAME_EVERYWHERE = {
    "command": ("command", "resume_args", "allow_changes", "max_attempts", "step_timeout_seconds"),
    "train": (*(name for name in FIELDS if name not in ("out", "nodes", "nodes_wait")), DATA_SHA256),
}
_DATA = ("data", "validation", "test", "negatives")
_OF_ONE_MACHINE = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr)(?P<joined>=.*)?")
_LONGEST_NAME = 200  # in bytes: file systems take 255


def join_folder(request: CommandRequest, folder: Path | None) -> Path:
    """Make the folder of a command's run on several machines, or join the one that another machine has begun there."""
    if folder is None:
        raise RequestError(
            "--nodes needs --run FOLDER", seen="the machines meet there", try_next=("--run /shared/FOLDER --nodes 2",)
        )
    return _join({"kind": "command", **asdict(request)}, folder, "--run")


def join_training(request: TrainRequest) -> Path:
    """The same for a training run, whose data must be the same on every machine, too."""
    assert request.out is not None  # a request for several machines is refused without it
    folder = Path(request.out)
    return _join({**to_saved(replace(request, out=str(folder))), DATA_SHA256: _sha256_of(request)}, folder, "--out")


def _join(saved: Mapping[str, Any], folder: Path, where: str) -> Path:
    mine = folder / NODES / _require_name(node_name())
    if (folder / REQUEST).exists():
        _require_same(saved, read_artifact(folder / REQUEST), folder, where)
    try:
        inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if (inside and not inside & {REQUEST, NODES}) or folder.is_file():
            take_folder(folder, where)  # which refuses it with words
        mine.mkdir(parents=True, exist_ok=True)
        write_artifact(mine, REQUEST, saved)
        (mine / REQUEST).chmod(0o600)  # a command's holds the environment
        _be_first(mine / REQUEST, folder / REQUEST)
    except OSError as error:
        raise cannot_write(
            folder, error, set_to(where.lstrip("-"), placeholder="FOLDER", note="on storage that all machines share")
        ) from error
    _require_same(saved, read_artifact(folder / REQUEST), folder, where)
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


def _require_name(name: str) -> str:
    if name in (".", "..") or Path(name).name != name:
        raise RequestError(f"HOLDFAST_NODE={name} is no name for a machine", seen="it is used as the name of a folder")
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise RequestError(
            f"the name of this machine, {name[:20]}..., is too long",
            seen=f"{len(os.fsencode(name))} bytes; it is used as the name of a folder, so {_LONGEST_NAME} at the most",
            try_next=("HOLDFAST_NODE=a-shorter-name",),
        )
    return name


def _require_same(saved: Mapping[str, Any], begun: Mapping[str, Any], folder: Path, where: str) -> None:
    """Refuse a machine that was started with other words than the first."""
    kind, nodes = begun.get("kind"), int(begun.get("nodes") or 1)
    if kind != saved["kind"] or nodes != (saved["nodes"] or 1):
        raise RequestError(
            f"{where} {folder} holds another run",
            seen=f"kind {kind!r}, for {plural(nodes, 'machine')}",
            try_next=(f"--nodes {nodes}", "name a folder that is not there yet"),
        )
    for name in _SAME_EVERYWHERE[saved["kind"]]:
        if name not in begun:
            continue
        here, there = _comparable(saved[name]), _comparable(begun[name])
        if here != there:
            raise RequestError(
                f"{_called(name, kind)} is not the same here as on the machine that began this run",
                seen=f"there: {_told(there)}; here: {_told(here)}",
                try_next=(
                    "put the same data on every machine, or on storage that all share"
                    if name == DATA_SHA256
                    else "start the same words on every machine",
                    "name a folder that is not there yet, for another run",
                ),
            )


def _comparable(value: object) -> object:
    plain = to_plain(value)
    return shlex.join(_without_own_options(list(map(str, plain)))) if isinstance(plain, list) else plain


def _called(name: str, kind: str) -> str:
    if name in ("command", DATA_SHA256):
        return {"command": "the command", DATA_SHA256: "what is in the data (its SHA-256)"}[name]
    return option(name.removesuffix("_seconds") if kind == "command" else name)


def _sha256_of(request: TrainRequest) -> str:
    """Of the contents of all data, and of the names inside of folders."""
    whole = hashlib.sha256()
    for given in filter(None, (getattr(request, name) for name in _DATA)):
        files = sorted(path for path in Path(given).rglob("*") if path.is_file()) or [Path(given)]
        try:
            for file in files:
                whole.update(str(file.relative_to(given)).encode(errors="surrogateescape"))
                with file.open("rb") as content:
                    whole.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise RequestError(f"{given} cannot be read", seen=error.strerror or str(error)) from error
    return whole.hexdigest()


def _without_own_options(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that must be the same on every machine: those that say which one it is are left out."""
    words, kept = iter(command), []
    for word in words:
        if not (match := _OF_ONE_MACHINE.fullmatch(word)):
            kept.append(word)
        elif match["joined"] is None:
            next(words, "")
    return tuple(kept)


def _told(value: object) -> str:
    return "not given" if value is None else str(value)
