"""The checkpoints that a script has saved itself during a run: what its own resume arguments can continue from.

Files saved with torch, safetensors or accelerate are reported by the preload. Others are recognized by names that look
like checkpoints, among the new files in the working folder and in the folders that the command names.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.event_log import EventLog, find_last, read_events
from holdfast.core.events import FileSaved, ResumeArgsChosen
from holdfast.core.records import AttemptStart, CommandRequest, Outcome, read_record
from holdfast.core.runfolder import EVENTS, NODES, attempt_folders, run_of
from holdfast.runs.new_folder import RUNS

_NAMES = re.compile(
    r"\.(pt|pth|ckpt|safetensors|distcp|h5|keras|orbax)$"
    # formats that hold data at least as often as models
    r"|(ckpt|checkpoint|model|weights|optim|state|snapshot|epoch|step|last).*\.(bin|npz|pkl|pickle|msgpack|tar)$",
    re.IGNORECASE,
)
_MOST_FOLDERS, _MOST_DEPTH = 2_000, 3
_NOT_SEARCHED = re.compile(r"\.|__pycache__$|node_modules$|site-packages$")


def may_use_resume_args(request: CommandRequest, attempt: Path) -> bool:
    """Whether this attempt has something to resume from, which it reports; with several machines the leader decides."""
    if not request.resume_args:
        return False
    if attempt.parent.name == NODES:
        decided = find_last(attempt.parents[1] / EVENTS, ResumeArgsChosen)
        return decided is not None and bool(decided.checkpoint)
    found = newest_checkpoint(request, attempt)
    log = EventLog(attempt / EVENTS)
    log.write(ResumeArgsChosen(arguments=request.resume_args, checkpoint=str(found or "")))
    log.close()
    return found is not None


def newest_checkpoint(request: CommandRequest, attempt: Path) -> Path | None:
    """The newest intact checkpoint that the script saved in this run's earlier attempts."""
    run = run_of(attempt)
    earlier = [folder for folder in attempt_folders(run) if folder.name != attempt.name]
    starts = [start.started for folder in earlier if (start := read_record(folder, AttemptStart))]
    if not starts:
        return None
    outcomes = [outcome for folder in earlier if (outcome := read_record(folder, Outcome))]
    has_trained = any(outcome.step_reached for outcome in outcomes)
    local, remote, prepared = set[Path](), set[Path](), set[Path]()
    for folder in earlier:
        for file in (folder / EVENTS, *folder.glob(f"{NODES}/*/{EVENTS}")):
            for event in read_events(file):
                if isinstance(event, FileSaved):
                    is_data = has_trained and not event.step  # such as tokenized data, saved before the first step
                    kind = prepared if is_data else local if file.parent == folder else remote
                    kind.add(Path(event.path))
    found = local | {path for path in remote if path.exists()} | set(_new_files(request, run, local, min(starts)))
    intact = [path for path in found - (prepared - local) if _changed_at(path) >= min(starts) and _is_intact(path)]
    if intact:
        return max(intact, key=_changed_at)
    return min((path for path in remote if not path.exists()), default=None)  # on another machine's own disk


def _new_files(request: CommandRequest, run: Path, saved: set[Path], since: float) -> Iterator[Path]:
    """Files named like checkpoints, written since the run began where the command works or saved something."""
    cwd = Path(request.cwd)
    words = {part for word in request.command[1:] for part in (word, word.partition("=")[2]) if part}
    roots = {cwd, *(cwd / word for word in words)}
    roots |= {path.parent for path in saved if not path.exists()}  # a draft that was renamed
    own = {run.resolve(), *([run.parent.resolve()] if run.parent.name == RUNS else [])}
    for root in roots:
        yield from (path for path in _paths(root, own) if _NAMES.search(path.name) and _changed_at(path) >= since)


def _paths(root: Path, own: set[Path]) -> Iterator[Path]:
    """A path and what is in it, up to some depth and number; nothing of Holdfast's and of installed packages."""
    yield root
    for _, (folder, names, files) in zip(range(_MOST_FOLDERS), os.walk(root), strict=False):
        path = Path(folder)
        searched = [name for name in names if not _NOT_SEARCHED.match(name) and (path / name).resolve() not in own]
        names[:] = searched if len(path.relative_to(root).parts) < _MOST_DEPTH else []
        yield from (path / name for name in (*searched, *files))


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_intact(path: Path) -> bool:
    """Whether a file is whole, as far as its format shows it: a kill in the middle of a save leaves a part."""
    try:
        if path.is_dir():
            return any(path.iterdir())
        with path.open("rb") as file:
            start = file.read(8)
            if start[:2] == b"PK":  # torch's format, which has its directory at the end
                return zipfile.is_zipfile(path)
            if path.suffix == ".safetensors":
                length = int.from_bytes(start, "little")
                header = json.loads(file.read(length))
                ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
                return 8 + length + max(ends, default=0) == path.stat().st_size
            return bool(start)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        return False
