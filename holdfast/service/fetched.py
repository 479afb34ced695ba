"""What pages show and delete of runs that lie on other disks: brought from the store when somebody asks for it."""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Iterable
from datetime import datetime

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.service.jobs.models import Job
from holdfast.service.mirror import brought, has_model, move_into, shelf_of, store_words
from holdfast.service.storage import Copy, Shelf, Store, StoreError, open_store

SEEN = "seen.json"  # in a run's folder that is here for its page alone: what of the store it shows
_ASK_SECONDS = 5.0  # between two looks for what is new of a run that somebody watches
_LARGE = ("model/", "prepared/", "checkpoints/")
_fetching = threading.Lock()
_asked: dict[int, float] = {}
_log = logging.getLogger(__name__)


def fetch_run(job: Job) -> None:
    """Bring a finished model to this disk, for a page that did not run it."""
    if job.state == Job.State.FINISHED and not has_model(job.folder) and (store := open_store()):
        with _fetching:
            if (copy := shelf_of(store, job).newest()) and not has_model(job.folder):
                if not job.folder.exists():
                    _fetch_story(store, job, copy)
                _fetch(store, job, copy, [name for name in copy.files if name.startswith(_LARGE)])


def fetch_story(job: Job) -> None:
    """Bring what tells of a run that another machine works on or has worked on, as of its last checkpoint."""
    now, is_ours = time.monotonic(), job.folder.exists() and not (job.folder / SEEN).is_file()
    store = None if is_ours or now - _asked.get(job.pk, float("-inf")) < _ASK_SECONDS else open_store()
    if store is None:
        return
    _asked[job.pk] = now
    try:
        with _fetching:
            copy = shelf_of(store, job).newest()
            if copy and copy.mark != read_artifact(job.folder / SEEN).get("mark"):
                shutil.rmtree(job.folder, ignore_errors=True)
                _fetch_story(store, job, copy)
    except (StoreError, OSError) as error:
        _log.warning("run %s: %s", job.pk, store_words(error))  # its page shows the row


def forget(kind: str, number: int, made: datetime) -> None:
    """Remove what was deleted here from the store too, in the background; a store that is away keeps it."""
    if store := open_store():
        threading.Thread(target=_forget, args=(Shelf(store, kind, number, made),), daemon=True).start()


def forget_model(job: Job) -> None:
    """Remove a model from the store as it was removed here; what tells of its run stays."""
    if store := open_store():
        threading.Thread(target=_forget_model, args=(shelf_of(store, job),), daemon=True).start()


def _forget(shelf: Shelf) -> None:
    with contextlib.suppress(StoreError):
        shelf.drop()


def _forget_model(shelf: Shelf) -> None:
    with contextlib.suppress(StoreError):
        if copy := shelf.newest():
            shelf.keep(copy, [name for name in copy.files if not name.startswith(("model/", "checkpoints/"))])


def _fetch_story(store: Store, job: Job, copy: Copy) -> None:
    _fetch(store, job, copy, [name for name in copy.files if not name.startswith(_LARGE)])
    write_artifact(job.folder, SEEN, {"mark": copy.mark})


def _fetch(store: Store, job: Job, copy: Copy, names: Iterable[str]) -> None:
    with brought(shelf_of(store, job), copy, names, _log.warning) as found:
        move_into(found, job.folder)
