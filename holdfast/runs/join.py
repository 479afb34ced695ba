"""Joins a run on several machines that one of them has started: the same command on each, in a shared folder.

Leaves: request.json of the first machine, nodes/NAME/request.json of each.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.disk_space import cannot_write
from holdfast.core.env import node_name
from holdfast.core.errors import RequestError, set_to
from holdfast.core.records import CommandRequest, Result, read_data_sha256, read_record, read_request, write_request
from holdfast.core.runfolder import NODES, REQUEST
from holdfast.core.settings import SETTINGS, TrainRequest, names_with
from holdfast.core.text import option, plural
from holdfast.runs.new_folder import take_folder

Request = TrainRequest | CommandRequest

# Machines may differ only in where they are, and in how long they wait.
_SAME_EVERYWHERE = {
    "command": ("command", "resume_args", "allow_changes", "max_attempts", "step_timeout_seconds"),
    "train": tuple(name for name in SETTINGS if name not in names_with("own")),
}
_DATA = ("data", "validation", "test", "negatives")
_OF_ONE_MACHINE = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr)(?P<joined>=.*)?")
_LONGEST_NAME = 200  # in bytes: file systems take 255


def join_folder(request: CommandRequest, folder: Path | None) -> Path:
    """Make the folder of a command's run on several machines, or join the run that is already there."""
    if folder is None:
        raise RequestError(
            "--nodes needs --run FOLDER",
            found="the machines communicate there",
            try_next=("--run /shared/FOLDER --nodes 2",),
        )
    return _join(request, folder, "--run")


def join_training(request: TrainRequest) -> Path:
    """The same for a training run, whose data must be the same on every machine, too."""
    assert request.out is not None  # a request for several machines is refused without it
    folder = Path(request.out)
    return _join(replace(request, out=str(folder)), folder, "--out", _sha256_of(request))


def _join(request: Request, folder: Path, where: str, data_sha256: str = "") -> Path:
    mine = folder / NODES / _require_name(node_name())
    if (folder / REQUEST).exists():
        _require_same(request, data_sha256, folder, where)
    try:
        inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if (inside and not inside & {REQUEST, NODES}) or folder.is_file():
            take_folder(folder, where)  # which refuses it
        mine.mkdir(parents=True, exist_ok=True)
        write_request(mine, request, data_sha256=data_sha256)
        (mine / REQUEST).chmod(0o600)  # a command's holds the environment
        _be_first(mine / REQUEST, folder / REQUEST)
    except OSError as error:
        raise cannot_write(
            folder, error, set_to(where.lstrip("-"), placeholder="FOLDER", note="on storage shared by all machines")
        ) from error
    _require_same(request, data_sha256, folder, where)
    return folder.resolve()


def has_finished(run: Path) -> bool:
    """Whether the run to join has already finished, as when a batch system restarts its job."""
    result = read_record(run, Result)
    return result is not None and result.state == "finished"


def _be_first(mine: Path, first: Path) -> None:
    """Publish this machine's request as the run's, unless another machine was first; creating a link is atomic."""
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
        raise RequestError(
            f"HOLDFAST_NODE={name} is not a valid machine name", found="it is used as the name of a folder"
        )
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise RequestError(
            f"the name of this machine, {name[:20]}..., is too long",
            found=f"{len(os.fsencode(name))} bytes; it names a folder, so the limit is {_LONGEST_NAME}",
            try_next=("HOLDFAST_NODE=a-shorter-name",),
        )
    return name


def _require_same(request: Request, data_sha256: str, folder: Path, where: str) -> None:
    """Refuse a machine whose command line differs from that of the first."""
    begun, kind = read_request(folder), "train" if isinstance(request, TrainRequest) else "command"
    if type(begun) is not type(request) or begun is None or (begun.nodes or 1) != (request.nodes or 1):
        nodes = (begun.nodes if begun else None) or 1
        raise RequestError(
            f"{where} {folder} holds another run",
            setting="nodes",
            found=f"a {'training run' if isinstance(begun, TrainRequest) else 'command'} on {plural(nodes, 'machine')}",
            try_next=(f"--nodes {nodes}", "use a folder that does not exist yet"),
        )
    for name in _SAME_EVERYWHERE[kind]:
        here, there = _comparable(getattr(request, name)), _comparable(getattr(begun, name))
        if here != there:
            raise _differs(name, _called(name, kind), there, here, "run the same command on every machine")
    if (there := read_data_sha256(folder)) != data_sha256:
        advice = "put the same data on every machine, or on shared storage"
        raise _differs("data", "the content of the data (its SHA-256)", there, data_sha256, advice)


def _differs(setting: str, called: str, there: object, here: object, advice: str) -> RequestError:
    return RequestError(
        f"{called} differs from that of the machine that started this run",
        found=f"there: {_shown(there)}; here: {_shown(here)}",
        setting=setting,
        try_next=(advice, "use a folder that does not exist yet, for another run"),
    )


def _comparable(value: object) -> object:
    plain = list(value) if isinstance(value, tuple) else value
    return shlex.join(_without_own_options(list(map(str, plain)))) if isinstance(plain, list) else plain


def _called(name: str, kind: str) -> str:
    if name == "command":
        return "the command"
    return option(name.removesuffix("_seconds") if kind == "command" else name)


def _sha256_of(request: TrainRequest) -> str:
    """The SHA-256 of the contents of all data, and of the names inside folders."""
    whole = hashlib.sha256()
    for given in filter(None, (getattr(request, name) for name in _DATA)):
        files = sorted(path for path in Path(given).rglob("*") if path.is_file()) or [Path(given)]
        try:
            for file in files:
                whole.update(str(file.relative_to(given)).encode(errors="surrogateescape"))
                with file.open("rb") as content:
                    whole.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise RequestError(f"{given} cannot be read", found=error.strerror or str(error)) from error
    return whole.hexdigest()


def _without_own_options(command: Sequence[str]) -> tuple[str, ...]:
    """The part of a command that must be the same on every machine, without options that say which machine it is."""
    words, kept = iter(command), []
    for word in words:
        if not (match := _OF_ONE_MACHINE.fullmatch(word)):
            kept.append(word)
        elif match["joined"] is None:
            next(words, "")
    return tuple(kept)


def _shown(value: object) -> str:
    return "not given" if value is None else str(value)
