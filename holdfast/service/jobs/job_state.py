"""The state of a job's run, read from its folder, and what of it the rows and the API show.

A run folder is read again and again: every few seconds by its agent, and by everyone who has its page open. So one
`RunReader` is kept for each, which reads only what is new.
"""

import logging
import math
import threading
from collections import OrderedDict
from pathlib import Path

from holdfast.core.artifacts import to_plain
from holdfast.core.runfolder import attempt_folders
from holdfast.runs.state import RunReader, RunState
from holdfast.service.jobs.models import Job, JobState

_KEPT_READERS = 256
_readers: OrderedDict[tuple[str, int], RunReader] = OrderedDict()
_lock = threading.Lock()
_log = logging.getLogger(__name__)


def read_job(job: Job) -> RunState | None:
    """The state of a job's run; None before the run has a folder, or when the folder cannot be read."""
    return read_run(job.folder, is_supervised=job.state == JobState.RUNNING)


def read_run(run: Path, *, is_supervised: bool) -> RunState | None:
    """The same, of a folder; the caller knows from the job's row whether anyone works on it."""
    try:
        # By inode too: with HOLDFAST_STORE another copy of the run may take the folder's place.
        key = (str(run), run.stat().st_ino)
        with _lock:
            reader = _readers.get(key) or _readers.setdefault(key, RunReader(run))
            _readers.move_to_end(key)
            while len(_readers) > _KEPT_READERS:
                _readers.popitem(last=False)
        return reader.read(is_supervised=is_supervised)
    except FileNotFoundError:
        return None
    except Exception:  # a damaged folder must end neither a run nor a page
        _log.warning("%s cannot be read", run, exc_info=True)
        return None


def row_fields(state: RunState | None) -> dict[str, object]:
    """What the row of a job copies from its run, so that lists need no folder."""
    if state is None:
        return {}
    found: dict[str, object] = {
        "phase": _phase(state)[:40],
        "step": state.step,
        "steps": state.steps,
        "loss": state.loss if state.loss is not None and math.isfinite(state.loss) else None,
        "eta_seconds": state.seconds_left,
        "attempts": len(state.attempts),
        "metrics": to_plain(state.scores),
    }
    return {**found, "task": state.task} if state.task else found


def fingerprint(run: Path) -> tuple[object, ...]:
    """A value that changes whenever the folder does, from sizes and times alone: cheap enough for every request."""
    try:
        newest = attempt_folders(run)[-1:]
    except (OSError, ValueError):
        newest = []
    return tuple(tuple(_entries(folder)) for folder in (run, *newest))


def _phase(state: RunState) -> str:
    """What it does now; nothing between two attempts, when the newest phase is that of a dead one."""
    if state.has_ended:
        return ""
    return state.stage or (state.phase if state.is_training else "")


def _entries(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    try:
        for entry in folder.iterdir():
            if not entry.name.startswith("."):
                about = entry.stat()
                found.append((entry.name, about.st_mtime_ns, about.st_size))
    except OSError:
        pass
    return sorted(found)
