"""What this machine still has to send to the object store or delete from it, as soon as the store responds.

That is uploads, runs whose agent is gone, and deletions. Files next to those of the agents mark what is left to do.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from django.db import connections

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.runs.process_identity import find_process
from holdfast.service.home import this_home
from holdfast.service.jobs.models import Dataset, DatasetState, Job
from holdfast.service.object_store import ObjectStore, StoreError, open_store
from holdfast.service.replicator import UNSENT, clear_unsent, describe_store_error, fence_of, send, stored_run
from holdfast.service.staging import sweep_staging
from holdfast.service.stored_folder import StoredFile, StoredFolder

_UNWANTED = ".unwanted"
_LOOK_SECONDS, _AGAIN_SECONDS = 2.0, 30.0
_sent_datasets: set[int] = set()


def send_outbox_forever() -> None:
    """Work through the outbox forever; return at once without a store."""
    store, said = open_store(), ""
    if store:
        sweep_staging()
    while store:
        seconds, trouble = _LOOK_SECONDS, ""
        try:
            send_outbox(store)
        except Exception as error:  # of the store, the database or the disk: tried again
            seconds, trouble = _AGAIN_SECONDS, describe_store_error(error)
        if trouble != said:
            print(f"not sent to the store yet: {trouble}" if trouble else "the store responds again", flush=True)
            said = trouble
        connections.close_all()
        time.sleep(seconds)


def send_outbox(store: ObjectStore) -> None:
    """Do everything that is left to do; a failure delays nothing else and is raised at the end."""
    trouble: Exception | None = None
    for work in _works(store):
        try:
            work()
        except Exception as error:  # of the store, the database or the disk
            trouble = trouble or error
            if isinstance(error, StoreError) and error.is_down:
                break
    if trouble:
        raise trouble


def forget(kind: str, number: int, made: datetime) -> None:
    """Delete from the store what was deleted here, in the background."""
    _forget(f"{kind}-{number}", kind=kind, number=number, made=made.isoformat())


def forget_model(job: Job) -> None:
    """Delete a model from the store; the record of its run stays."""
    _forget(f"model-{job.pk}", kind="runs", number=job.pk, made=job.created.isoformat(), is_model=True)


def _forget(name: str, **what: object) -> None:
    if store := open_store():
        home = this_home()
        home.make()
        mark = write_artifact(home.agents, f"{name}{_UNWANTED}", what)
        threading.Thread(target=_try_to_remove, args=(store, mark), daemon=True).start()


def _works(store: ObjectStore) -> Iterator[Callable[[], None]]:
    for dataset in Dataset.objects.filter(state=DatasetState.READY).exclude(pk__in=_sent_datasets):
        yield functools.partial(_send_dataset, store, dataset)
    for mark in this_home().agents.glob(f"[0-9]*{UNSENT}"):
        yield functools.partial(_send_run, store, mark)
    for mark in this_home().agents.glob(f"*{_UNWANTED}"):
        yield functools.partial(_remove, store, mark)


def _send_dataset(store: ObjectStore, dataset: Dataset) -> None:
    if dataset.path.is_file():
        stored = StoredFolder(store, "datasets", dataset.pk, dataset.created)
        if stored.newest() is None:
            stored.put(fence_of(dataset.created), [{dataset.file_name: StoredFile(path=dataset.path)}])
        _sent_datasets.add(dataset.pk)


def _send_run(store: ObjectStore, mark: Path) -> None:
    """Send what a dead agent could not."""
    if find_process(read_artifact(mark.with_suffix(".json"))) is not None:
        return
    fence, job = str(read_artifact(mark).get("turn", "")), Job.objects.filter(pk=int(mark.stem)).first()
    if job and fence and job.folder.is_dir():
        copy = stored_run(store, job).newest()
        if copy is None or copy.fence <= fence:
            send(stored_run(store, job), fence, job.folder, print)
    clear_unsent(mark, fence)


def _try_to_remove(store: ObjectStore, mark: Path) -> None:
    try:
        _remove(store, mark)
    except (StoreError, OSError) as error:
        print(f"not deleted from the store yet: {describe_store_error(error)}", flush=True)


def _remove(store: ObjectStore, mark: Path) -> None:
    what = read_artifact(mark)
    if what:
        stored = StoredFolder(store, what["kind"], what["number"], datetime.fromisoformat(what["made"]))
        if not what.get("is_model"):
            stored.drop()
        elif copy := stored.newest():
            stored.keep(copy, [name for name in copy.files if not name.startswith(("model/", "checkpoints/"))])
    mark.unlink(missing_ok=True)
