"""Runs on other disks: what a page shows of them is fetched from the object store on demand."""

import logging
import threading
import time
from pathlib import Path

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import HoldfastError
from holdfast.service.jobs.models import Job, JobState
from holdfast.service.object_store import ObjectStore, open_store
from holdfast.service.replicator import FENCE, SEEN, describe_store_error, downloaded, has_model, move_into, stored_run
from holdfast.service.staging import staging_folder, swap_lock
from holdfast.service.stored_folder import Snapshot

_ASK_SECONDS = 5.0  # between two checks for news of a run whose page is open
_LARGE = ("model/", "prepared/", "checkpoints/")
_fetching: dict[int, threading.Lock] = {}
_asked: dict[int, float] = {}
_log = logging.getLogger(__name__)


def fetch_run(job: Job) -> None:
    """Fetch the model of a finished run to this disk."""
    if job.state == JobState.FINISHED and not has_model(job.folder) and (store := open_store()):
        with _lock_of(job):
            if (copy := stored_run(store, job).newest()) and not has_model(job.folder):
                if not job.folder.exists():
                    _fetch_record(store, job, copy)
                names = [name for name in copy.files if name.startswith(_LARGE)]
                with downloaded(stored_run(store, job), copy, names, _log.warning) as found, swap_lock():
                    move_into(found, job.folder)


def fetch_record(job: Job) -> None:
    """Fetch the record of a run of another machine, as of its last checkpoint, without its weights."""
    now, lock = time.monotonic(), _lock_of(job)
    if _is_of_this_machine(job.folder) or now - _asked.get(job.pk, float("-inf")) < _ASK_SECONDS:
        return
    store = open_store()
    if store is None or not lock.acquire(blocking=False):  # or it is being downloaded
        return
    _asked[job.pk] = now
    try:
        copy = stored_run(store, job).newest()
        if copy and copy.mark != read_artifact(job.folder / SEEN).get("mark"):
            _fetch_record(store, job, copy)
    except (HoldfastError, OSError) as error:
        _log.warning("run %s: %s", job.pk, describe_store_error(error))  # the page shows its row
    finally:
        lock.release()


def _fetch_record(store: ObjectStore, job: Job, copy: Snapshot) -> None:
    """Replace an earlier copy of the record; never replace a folder of a run that this machine works on."""
    names = [name for name in copy.files if not name.startswith(_LARGE)]
    with downloaded(stored_run(store, job), copy, names, _log.warning) as found, staging_folder() as old, swap_lock():
        write_artifact(found, SEEN, {"mark": copy.mark})
        if not _is_of_this_machine(job.folder):
            if job.folder.exists():
                job.folder.replace(old / "run")
            found.replace(job.folder)


def _is_of_this_machine(run: Path) -> bool:
    return (run / FENCE).is_file() or (run.exists() and not (run / SEEN).is_file())


def _lock_of(job: Job) -> threading.Lock:
    return _fetching.setdefault(job.pk, threading.Lock())
