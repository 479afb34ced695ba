"""Receives uploads: streamed to the disk of the home folder, limited in size, hashed, and parsed only by the survey.

An upload in progress is in HOME/incoming under a generated name, locked by the process that receives it. It moves to
its dataset's folder in one rename, or is deleted with its request; leftovers of a killed server are swept.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, StopUpload
from django.db import transaction

from holdfast.core.errors import HoldfastError, MachineError, Problem, RequestError, invalid_settings
from holdfast.core.text import human_bytes
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets
from holdfast.service.jobs.models import Dataset
from holdfast.service.jobs.quotas import check_new_upload

_NAME_CHARACTERS, _NAME_BYTES = 100, 200
_OLD_SECONDS = 3600


class Incoming:
    """An upload in progress: locked while it arrives, and deleted unless it is moved."""

    def __init__(self, expected_bytes: int | None = None):
        sweep()
        check_room(expected_bytes or 0)
        home = this_home()
        home.make()
        self.folder = Path(tempfile.mkdtemp(prefix="upload-", dir=home.incoming))
        self.file: IO[bytes] = (self.folder / "file").open("w+b")
        fcntl.flock(self.file, fcntl.LOCK_EX)  # released when this process dies: then it may be swept
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Write the next chunk; refuse one beyond the limit."""
        self.size_bytes += len(chunk)
        if self.size_bytes > settings.UPLOAD_BYTES:
            raise too_large()
        try:
            self.file.write(chunk)
        except OSError as error:
            raise MachineError("the upload cannot be saved", found=error.strerror or str(error)) from error
        self._digest.update(chunk)

    @property
    def sha256(self) -> str:
        """The hash of what has arrived so far."""
        return self._digest.hexdigest()

    def move_to(self, target: Path) -> None:
        """Move it into its own folder; a folder already there belongs to a row that was never committed."""
        self.file.flush()
        os.fsync(self.file.fileno())
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir(mode=0o700)
        (self.folder / "file").rename(target)
        self.discard()

    def discard(self) -> None:
        """Delete it."""
        self.file.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Received(UploadedFile):  # type: ignore[type-arg]  # generic in the stubs alone
    """A file of request.FILES in HOME/incoming; deleted when the request ends, unless it was moved."""

    def __init__(self, incoming: Incoming, **about: Any):
        super().__init__(incoming.file, size=incoming.size_bytes, **about)
        self.incoming = incoming

    def close(self) -> None:
        """Called by Django at the end of the request."""
        self.incoming.discard()


class ToHome(FileUploadHandler):
    """Django's upload handler that writes to the home folder; a refusal is stored as `request.upload_refused`."""

    incoming: Incoming | None = None
    _whole_bytes = 0

    def handle_raw_input(self, *given: Any, **named: Any) -> None:
        """Remember the size of the request, to check the free space."""
        self._whole_bytes = int(given[2] or 0)

    def new_file(self, *args: Any, **more: Any) -> None:
        """Start a file; an earlier, unexpected one of the same request is deleted with the request."""
        super().new_file(*args, **more)
        try:
            self.incoming = Incoming(self._whole_bytes)
        except HoldfastError as error:
            self._refuse(error)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """Write a chunk."""
        assert self.incoming is not None
        try:
            self.incoming.write(raw_data)
        except HoldfastError as error:
            self._refuse(error)

    def file_complete(self, file_size: int) -> Received:
        """Return the complete file."""
        assert self.incoming is not None
        self.incoming.file.seek(0)
        about = {"name": self.file_name, "content_type": self.content_type, "charset": self.charset}
        return Received(self.incoming, **about)

    def upload_interrupted(self) -> None:
        """Delete the file: the sender has disconnected."""
        if self.incoming is not None:
            self.incoming.discard()

    def _refuse(self, error: HoldfastError) -> None:
        if self.incoming is not None:
            self.incoming.discard()
        self.request.upload_refused = error  # type: ignore[union-attr]  # there is a request during an upload
        raise StopUpload(connection_reset=False)


def receive(owner: User, file: "UploadedFile[Any]", name: str = "", team: Group | None = None) -> Dataset:
    """Create a dataset from an upload and start its survey."""
    incoming = file.incoming if isinstance(file, Received) else _copied(file.chunks(), file.size)
    try:
        if not incoming.size_bytes:
            raise RequestError("the file is empty", found="0 bytes", try_next=("choose a file with a header and rows",))
        check_new_upload(owner, incoming.size_bytes)
        if team is not None and not owner.is_superuser and not owner.groups.filter(pk=team.pk).exists():
            raise invalid_settings([Problem("team", "you are not a member of this team", team.name)])
        file_name = safe_name(file.name or "")
        with transaction.atomic():
            dataset = Dataset.objects.create(
                owner=owner,
                team=team,
                name=title_of(name) or title_of(_stem(file_name)),
                file_name=file_name,
                size_bytes=incoming.size_bytes,
                sha256=incoming.sha256,
            )
            # Before the row becomes visible, so that a row always has its file. A folder without a row is swept.
            incoming.move_to(dataset.path)
    except OSError as error:
        raise MachineError("the upload cannot be saved", found=error.strerror or str(error)) from error
    finally:
        incoming.discard()
    datasets.start_survey(dataset)
    return dataset


def safe_name(given: str) -> str:
    """A safe file name: no folders, no special characters, not too long, and not hidden."""
    last = re.split(r"[/\\]", given)[-1]
    letters = (letter if letter.isalnum() or letter in "._-" else "_" for letter in unicodedata.normalize("NFC", last))
    name = re.sub(r"_{2,}", "_", "".join(letters)).strip("._-") or "upload"
    stem, dot, ending = name.partition(".")
    ending = (dot + ending)[-24:] if dot else ""
    stem = stem[: _NAME_CHARACTERS - len(ending)]
    while len((stem + ending).encode("utf-8", "replace")) > _NAME_BYTES:
        stem, ending = (stem[:-1], ending) if stem else ("upload", ".data")
    return (stem or "upload") + ending


def title_of(given: str) -> str:
    """A display name: one line of printable characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in given)
    return " ".join(shown.split())[:200]


def too_large() -> RequestError:
    """The error for a file beyond the limit."""
    return RequestError(
        f"the file is larger than {human_bytes(settings.UPLOAD_BYTES)}, the limit for uploads",
        try_next=("compress it with gzip", "or ask an administrator to raise HOLDFAST_UPLOAD_BYTES"),
    )


def check_room(expected_bytes: int) -> None:
    """Refuse a file that is too large or would not fit on the disk, before its first byte."""
    if expected_bytes > settings.UPLOAD_BYTES + 1_048_576:  # the form around the file counts, too
        raise too_large()
    home = this_home()
    home.make()
    free = shutil.disk_usage(home.folder).free
    if free < expected_bytes + settings.FREE_BYTES:
        raise MachineError(
            "not enough free space on the server's disk",
            found=f"{human_bytes(free)} free; the upload has {human_bytes(expected_bytes)}, "
            f"and {human_bytes(settings.FREE_BYTES)} must stay free",
            try_next=("delete datasets or models that you no longer need",),
        )


def sweep(now: float | None = None) -> int:
    """Remove leftovers of killed servers: partial uploads and folders without a row; return how many."""
    home, removed = this_home(), 0
    for folder in home.incoming.glob("upload-*") if home.incoming.is_dir() else ():
        with contextlib.suppress(OSError), (folder / "file").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # it is arriving right now
        if _is_old(folder, now, 5):  # a folder exists for a moment before its lock
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    aged = [folder for folder in _dataset_folders(home.datasets) if _is_old(folder, now, _OLD_SECONDS)]
    known = set(Dataset.objects.filter(pk__in=[int(folder.name) for folder in aged]).values_list("pk", flat=True))
    for folder in aged:
        if int(folder.name) not in known:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _dataset_folders(place: Path) -> list[Path]:
    return [folder for folder in place.iterdir() if folder.name.isdigit()] if place.is_dir() else []


def _is_old(folder: Path, now: float | None, seconds: float) -> bool:
    try:
        return (time.time() if now is None else now) - folder.stat().st_mtime > seconds
    except OSError:
        return False


def _copied(chunks: Iterable[bytes], expected_bytes: int | None) -> Incoming:
    incoming = Incoming(expected_bytes)
    try:
        for chunk in chunks:
            incoming.write(chunk)
    except BaseException:
        incoming.discard()
        raise
    return incoming


def _stem(file_name: str) -> str:
    return file_name.partition(".")[0].replace("_", " ")
