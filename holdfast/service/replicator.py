"""Copies the folder of a run to the object store while it runs here, and fetches runs and datasets from there.

Only with HOLDFAST_STORE, for machines without a common disk. Two machines may believe that a run is theirs, for as long
as one of them has not noticed that its lease expired. So each claim writes under its own fencing token, made from the
end of its first lease by the database's clock; readers take the newest token, and what an old holder still writes is
never read.
"""

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import HoldfastError
from holdfast.core.records import RunPlan, read_record
from holdfast.core.runfolder import (
    CHILD,
    LEASES,
    MANIFEST,
    NOTICE,
    REQUEST,
    RESULT,
    SUPERVISOR,
    checkpoints_folder,
    model_folder,
)
from holdfast.service.home import this_home
from holdfast.service.jobs.job_folder import ROLES, make_folder
from holdfast.service.jobs.models import Dataset, Job
from holdfast.service.object_store import ObjectStore, StoreError
from holdfast.service.staging import staging_folder, swap_lock
from holdfast.service.stored_folder import READ_BYTES, Snapshot, StoredFile, StoredFolder

Say = Callable[[str], None]
Group = Mapping[str, StoredFile]

FENCE = "turn.json"  # in a run folder: the fencing token of the claim that worked on it here last
SEEN = "seen.json"  # in a run folder that is here only to be shown: which snapshot it is
UNSENT = ".unsent"  # next to an agent's file: not everything here was sent yet
_HERE_ONLY = {
    SUPERVISOR,
    LEASES,
    NOTICE,
    CHILD,
    FENCE,
    SEEN,
    "prepared",
    "search",
    "proof",
    "checkpoints",
    "model",
}
_LOOK_SECONDS, _AGAIN_SECONDS = 2.0, 30.0
_GROUP = re.compile(r"checkpoints/step-[^/]+(?=/)|(?:model|prepared)(?=/)")  # stored whole or not at all
_SENT_LATER = "the machine that has it will send it"


class Replicator:
    """Sends a run folder to the store at every new checkpoint; the run does not wait for the store."""

    def __init__(self, store: ObjectStore, job: Job, run: Path, say: Say):
        assert job.lease_until
        self._stored, self._run, self._say = stored_run(store, job), run, say
        self._fence = fence_of(job.lease_until)
        self._sent: set[str] = set()
        self._is_over = threading.Event()
        self._mark = this_home().agents / f"{job.pk}{UNSENT}"
        write_artifact(run, FENCE, {"turn": self._fence})
        (run / SEEN).unlink(missing_ok=True)
        write_artifact(self._mark.parent, self._mark.name, {"turn": self._fence})
        self._thread = threading.Thread(target=self._replicate, name="replicator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send nothing more: the run belongs to another machine."""
        self._is_over.set()

    def send_last(self) -> None:
        """Send the end of the run; if that fails, the outbox of this machine tries again later."""
        self._is_over.set()
        self._thread.join()
        if self._send():
            clear_unsent(self._mark, self._fence)

    def _replicate(self) -> None:
        seconds = _LOOK_SECONDS
        while not self._is_over.wait(seconds):
            found = {folder.name for folder in _checkpoints(self._run)}
            if found - self._sent:
                is_sent = self._send()
                self._sent, seconds = (found, _LOOK_SECONDS) if is_sent else (self._sent, _AGAIN_SECONDS)

    def _send(self) -> bool:
        try:
            send(self._stored, self._fence, self._run, self._say)
        except (StoreError, OSError) as error:
            self._say(f"not sent yet: {describe_store_error(error)}")
            return False
        return True


def send(stored: StoredFolder, fence: str, run: Path, say: Say) -> None:
    """Send a run folder as it is now: the small files, and the whole checkpoints or the finished model."""
    is_finished = read_artifact(run / RESULT).get("state") == "finished"
    with staging_folder() as aside:
        if is_finished:
            left_out = stored.put(fence, [_whole(run, "model"), *_corpus(run), *_small(run)])
        else:
            large = [_checkpoint(_pinned(one, aside)) for one in _checkpoints(run)]
            left_out = stored.put(fence, [*large, *_small(run)], kept="checkpoints/step-")
    say(f"sent to the store{', finished' if is_finished else ''}; skipped: {', '.join(left_out) or 'nothing'}")


def fetch_job(store: ObjectStore, job: Job, say: Say) -> None:
    """Fetch what the job needs and this disk lacks: its data, an earlier model, its own newest state."""
    numbers = [job.request[role] for role in ROLES if job.request.get(role)]
    for dataset in [*([job.dataset] if job.dataset else []), *Dataset.objects.filter(pk__in=numbers)]:
        fetch_dataset(store, dataset)
    for earlier in Job.objects.filter(pk=job.request.get("from_run")):
        if not has_model(earlier.folder):
            fetch_job(store, earlier, say)
        if not has_model(earlier.folder):
            raise StoreError(f"the model of run {earlier.pk} is not in the store yet", found=_SENT_LATER)
    copy = stored_run(store, job).newest()
    if copy is None or copy.fence <= str(read_artifact(job.folder / FENCE).get("turn", "")):
        return
    with downloaded(stored_run(store, job), copy, copy.files, say) as found, staging_folder() as old, swap_lock():
        if job.folder.exists():
            job.folder.replace(old / "run")
        make_folder(job)  # with the paths of this machine
        (found / REQUEST).unlink(missing_ok=True)
        move_into(found, job.folder)
        write_artifact(job.folder, FENCE, {"turn": copy.fence})
    say(f"fetched from the store: {len(copy.files)} files, {_newest_words(job.folder)}")


def fetch_dataset(store: ObjectStore, dataset: Dataset) -> None:
    """Fetch an upload to this disk; an error while it is not in the store yet."""
    if dataset.path.is_file():
        return
    stored = StoredFolder(store, "datasets", dataset.pk, dataset.created)
    copy = stored.newest()
    if copy is None:
        raise StoreError(f"dataset {dataset.pk} is not in the store yet", found=_SENT_LATER)
    with downloaded(stored, copy, copy.files, print) as found:
        if not (found / dataset.file_name).is_file():
            raise StoreError(f"dataset {dataset.pk} is damaged in the store", found="its checksum differs")
        dataset.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (found / dataset.file_name).replace(dataset.path)


def has_model(run: Path) -> bool:
    """Whether this folder holds a finished model."""
    return any(model_folder(run).rglob("*.safetensors"))


def stored_run(store: ObjectStore, job: Job) -> StoredFolder:
    """The folder of a run in the store."""
    return StoredFolder(store, "runs", job.pk, job.created)


def fence_of(moment: datetime) -> str:
    """A fencing token: later ones sort after earlier ones."""
    return moment.strftime("%Y%m%dT%H%M%S.%f")


def describe_store_error(error: Exception) -> str:
    """An error of the store in one line."""
    return f"{error.what}: {error.found}" if isinstance(error, HoldfastError) else repr(error)


def clear_unsent(mark: Path, fence: str) -> None:
    """Remove the mark once everything is sent, unless a later agent has written its own."""
    if read_artifact(mark).get("turn", "") == fence:
        mark.unlink(missing_ok=True)


def _small(run: Path) -> Iterator[Group]:
    """Everything except weights, prepared data and what is true only on this machine."""
    best = checkpoints_folder(run) / "best.json"
    for path in [*sorted(run.rglob("*")), best]:
        name = path.relative_to(run)
        is_here_only = path != best and (path.name.startswith(".") or _HERE_ONLY & {*name.parts})
        with contextlib.suppress(OSError):
            if not is_here_only and path.is_file() and not path.is_symlink() and path.stat().st_size <= READ_BYTES:
                yield {str(name): StoredFile(path=path)}


def _checkpoints(run: Path) -> list[Path]:
    """The checkpoints, newest first."""
    return sorted(checkpoints_folder(run).glob("step-*"), reverse=True)


def _pinned(folder: Path, aside: Path) -> Path:
    """Hard links to a checkpoint, so that the run may delete it while it is sent."""
    held = aside / folder.name
    with contextlib.suppress(OSError):
        shutil.copytree(folder, held, copy_function=_link)
    return held


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _checkpoint(folder: Path) -> Group:
    """The files of a checkpoint with the checksums from its manifest; nothing without a manifest."""
    sums = read_artifact(folder / MANIFEST).get("sha256") or {}
    names = {name: StoredFile(path=folder / name, sha256=str(sha256)) for name, sha256 in sums.items()}
    return {f"checkpoints/{folder.name}/{name}": item for name, item in names.items()} | {
        f"checkpoints/{folder.name}/{MANIFEST}": StoredFile(path=folder / MANIFEST)
    }


def _corpus(run: Path) -> list[Group]:
    """The passages that a finished search model searches."""
    plan = read_record(run, RunPlan)
    return [_whole(run, "prepared")] if plan and plan.task == "two-tower" else []


def _whole(run: Path, name: str) -> Group:
    files = (path for path in (run / name).rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(run)): StoredFile(path=path) for path in files}


@contextlib.contextmanager
def downloaded(stored: StoredFolder, copy: Snapshot, names: Iterable[str], say: Say) -> Iterator[Path]:
    """These files in a temporary folder; a damaged group is left out as a whole."""
    with staging_folder() as folder:
        for name in stored.get(copy, list(names), folder):
            say(f"{name} is damaged in the store; skipped")
            if root := _GROUP.match(name):
                shutil.rmtree(folder / root[0], ignore_errors=True)
        yield folder


def move_into(found: Path, folder: Path) -> None:
    """Move each entry that is missing, in one rename each; this also completes an interrupted move."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in sorted(found.iterdir()):
        if not (folder / entry.name).exists():
            entry.replace(folder / entry.name)


def _newest_words(run: Path) -> str:
    found = _checkpoints(run)
    return f"newest checkpoint {found[0].name}" if found else "no checkpoint"
