"""What pages show of runs that lie on other disks: brought from the store when somebody asks for it."""

import logging
import threading
import time
from pathlib import Path

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import HoldfastError
from holdfast.service.aside import place_aside, swapping
from holdfast.service.jobs.models import Job
from holdfast.service.mirror import SEEN, TURN, brought, has_model, move_into, shelf_of, store_words
from holdfast.service.shelf import Copy
from holdfast.service.storage import Store, open_store

_ASK_SECONDS = 5.0  # between two looks for what is new of a run that somebody watches
_LARGE = ("model/", "prepared/", "checkpoints/")
_fetching: dict[int, threading.Lock] = {}
_asked: dict[int, float] = {}
_log = logging.getLogger(__name__)


def fetch_run(job: Job) -> None:
    """Bring a finished model to this disk, for a page that did not run it."""
    if job.state == Job.State.FINISHED and not has_model(job.folder) and (store := open_store()):
        with _lock_of(job):
            if (copy := shelf_of(store, job).newest()) and not has_model(job.folder):
                if not job.folder.exists():
                    _fetch_story(store, job, copy)
                names = [name for name in copy.files if name.startswith(_LARGE)]
                with brought(shelf_of(store, job), copy, names, _log.warning) as found, swapping():
                    move_into(found, job.folder)


def fetch_story(job: Job) -> None:
    """Bring what tells of a run that another machine works on or has worked on, as of its last checkpoint."""
    now, lock = time.monotonic(), _lock_of(job)
    if _is_of_this_machine(job.folder) or now - _asked.get(job.pk, float("-inf")) < _ASK_SECONDS:
        return
    store = open_store()
    if store is None or not lock.acquire(blocking=False):  # or it is being brought
        return
    _asked[job.pk] = now
    try:
        copy = shelf_of(store, job).newest()
        if copy and copy.mark != read_artifact(job.folder / SEEN).get("mark"):
            _fetch_story(store, job, copy)
    except (HoldfastError, OSError) as error:
        _log.warning("run %s: %s", job.pk, store_words(error))  # its page shows the row
    finally:
        lock.release()


def _fetch_story(store: Store, job: Job, copy: Copy) -> None:
    """Put a folder for looking at in the place of an earlier one, never in that of a run which this machine has."""
    names = [name for name in copy.files if not name.startswith(_LARGE)]
    with brought(shelf_of(store, job), copy, names, _log.warning) as found, place_aside() as old, swapping():
        write_artifact(found, SEEN, {"mark": copy.mark})
        if not _is_of_this_machine(job.folder):
            if job.folder.exists():
                job.folder.replace(old / "run")
            found.replace(job.folder)


def _is_of_this_machine(run: Path) -> bool:
    return (run / TURN).is_file() or (run.exists() and not (run / SEEN).is_file())


def _lock_of(job: Job) -> threading.Lock:
    return _fetching.setdefault(job.pk, threading.Lock())
