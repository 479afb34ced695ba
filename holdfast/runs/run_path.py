"""Refuses a path that is not the folder of a run, with the same error in every command."""

import os
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.path_guess import did_you_mean
from holdfast.core.records import CommandRequest, read_request
from holdfast.core.runfolder import REQUEST, RESULT
from holdfast.core.settings import TrainRequest
from holdfast.runs.new_folder import RUNS

_SHOWN_NAMES = 5


def require_run(path: Path) -> None:
    """Refuse a path that is not the folder of a run."""
    if not is_run(path):
        raise no_run(path)


def current_run(folder: Path) -> Path:
    """The run in a folder; of a run of folds that has not ended, the run of the newest fold."""
    run = folder.resolve()
    folds = sorted(run.glob(f"fold-*/{REQUEST}"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return folds[-1].parent if folds and not (run / RESULT).is_file() else run


def require_request(run: Path) -> TrainRequest | CommandRequest:
    """What was requested of a run; refuses a folder that holds no run, or whose request is missing or damaged."""
    require_run(run)
    request = read_request(run)
    if request is None:
        raise RequestError(
            f"{run / REQUEST} cannot be read",
            found="it is not the JSON object that starts a run",
            try_next=(f"holdfast report {run}, which shows the rest of the run",),
        )
    return request


def is_run(path: Path) -> bool:
    """True for the folder of a run, also of one that is damaged; False for a folder that may not be read."""
    return os.path.isfile(path / REQUEST) or os.path.isdir(path / "attempts")  # noqa: PTH112, PTH113  (never raise)


def no_run(path: Path, wanted: str = "the folder of a run") -> RequestError:
    """The error for a path that is not a run: what it is, and a suggestion."""
    whole = path.absolute()
    named = f"use the folder that `holdfast train` or `holdfast run` printed, such as {RUNS}/NAME-1"
    if not os.path.exists(whole):  # noqa: PTH110  (never raises)
        there = Path(RUNS).absolute() / path.name
        known = (f"did you mean {there}?",) if is_run(there) else ()
        guess = known or did_you_mean(whole, is_run) or did_you_mean(there, is_run)
        return RequestError(f"no such folder: {whole}", try_next=guess or (named,))
    meant = _newest_inside(whole) or next(filter(is_run, whole.parents), None)
    guess = (f"did you mean {meant}?",) if meant else ()
    return RequestError(f"{whole} is not {wanted}", found=_described(whole), try_next=guess or (named,))


def _newest_inside(folder: Path) -> Path | None:
    try:
        return max(filter(is_run, folder.iterdir()), key=lambda run: run.stat().st_mtime, default=None)
    except OSError:
        return None


def _described(path: Path) -> str:
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except NotADirectoryError:
        return "it is a file"
    except OSError as error:
        return error.strerror or str(error)
    more = " ..." if len(names) > _SHOWN_NAMES else ""
    return f"it contains {', '.join(names[:_SHOWN_NAMES])}{more}" if names else "it is empty"
