"""What is to be sent to the store or removed from it once that answers: uploads, the work of keepers that are gone, and
what was deleted. Marks beside the keepers' files say so until it is done.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from django.db import connections

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.runs.identity import find_process
from holdfast.service.aside import sweep_aside
from holdfast.service.home import this_home
from holdfast.service.jobs.models import Dataset, Job
from holdfast.service.mirror import UNSENT, clear_mark, send, shelf_of, store_words, turn_of
from holdfast.service.shelf import Item, Shelf
from holdfast.service.storage import Store, StoreError, open_store

_UNWANTED = ".unwanted"
_LOOK_SECONDS, _AGAIN_SECONDS = 2.0, 30.0
_sent_datasets: set[int] = set()


def send_unsent_for_ever() -> None:
    """Send what is to be sent from this disk and whose keeper does not do it; nothing where there is no store."""
    store, said = open_store(), ""
    if store:
        sweep_aside()
    while store:
        seconds, trouble = _LOOK_SECONDS, ""
        try:
            send_unsent(store)
        except Exception as error:  # of the store, the database or the disk: the next turn tries again
            seconds, trouble = _AGAIN_SECONDS, store_words(error)
        if trouble != said:
            print(f"not sent to the store yet: {trouble}" if trouble else "the store answers again", flush=True)
            said = trouble
        connections.close_all()
        time.sleep(seconds)


def send_unsent(store: Store) -> None:
    """Do each of these things; one that cannot be done holds up no other, and is raised in the end."""
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
    """Remove what was deleted here from the store too, in the background and as soon as that answers."""
    _forget(f"{kind}-{number}", kind=kind, number=number, made=made.isoformat())


def forget_model(job: Job) -> None:
    """Remove a model from the store as it was removed here; what tells of its run stays."""
    _forget(f"model-{job.pk}", kind="runs", number=job.pk, made=job.created.isoformat(), is_model=True)


def _forget(name: str, **what: object) -> None:
    if store := open_store():
        home = this_home()
        home.make()
        mark = write_artifact(home.keepers, f"{name}{_UNWANTED}", what)
        threading.Thread(target=_try_to_remove, args=(store, mark), daemon=True).start()


def _works(store: Store) -> Iterator[Callable[[], None]]:
    for dataset in Dataset.objects.filter(state=Dataset.State.READY).exclude(pk__in=_sent_datasets):
        yield functools.partial(_send_dataset, store, dataset)
    for mark in this_home().keepers.glob(f"[0-9]*{UNSENT}"):
        yield functools.partial(_send_run, store, mark)
    for mark in this_home().keepers.glob(f"*{_UNWANTED}"):
        yield functools.partial(_remove, store, mark)


def _send_dataset(store: Store, dataset: Dataset) -> None:
    if dataset.path.is_file():
        shelf = Shelf(store, "datasets", dataset.pk, dataset.created)
        if shelf.newest() is None:
            shelf.put(turn_of(dataset.created), [{dataset.file_name: Item(path=dataset.path)}])
        _sent_datasets.add(dataset.pk)


def _send_run(store: Store, mark: Path) -> None:
    """Send what a keeper that is gone could not."""
    if find_process(read_artifact(mark.with_suffix(".json"))) is not None:
        return
    turn, job = str(read_artifact(mark).get("turn", "")), Job.objects.filter(pk=int(mark.stem)).first()
    if job and turn and job.folder.is_dir():
        copy = shelf_of(store, job).newest()
        if copy is None or copy.turn <= turn:
            send(shelf_of(store, job), turn, job.folder, print)
    clear_mark(mark, turn)


def _try_to_remove(store: Store, mark: Path) -> None:
    try:
        _remove(store, mark)
    except (StoreError, OSError) as error:
        print(f"not removed from the store yet: {store_words(error)}", flush=True)


def _remove(store: Store, mark: Path) -> None:
    what = read_artifact(mark)
    if what:
        shelf = Shelf(store, what["kind"], what["number"], datetime.fromisoformat(what["made"]))
        if not what.get("is_model"):
            shelf.drop()
        elif copy := shelf.newest():
            shelf.keep(copy, [name for name in copy.files if not name.startswith(("model/", "checkpoints/"))])
    mark.unlink(missing_ok=True)
