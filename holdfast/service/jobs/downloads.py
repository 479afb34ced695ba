"""A finished model as a zip file that is created while it is sent, not in memory or on disk.

Files are stored uncompressed, since weights do not compress; only plain files of the model's folder are included.
"""

import asyncio
import re
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import model_folder
from holdfast.service.jobs.models import Job, JobState
from holdfast.service.remote_runs import fetch_run

_CHUNK_BYTES = 1 << 20


class NoModel(RequestError):
    """The run has no finished model."""

    status = 404


def model_zip(job: Job) -> tuple[str, AsyncIterator[bytes]]:
    """The name and the bytes of the zip file, for a streaming response; an error without a finished model."""
    fetch_run(job)
    folder = model_folder(job.folder)
    files = _files(folder)
    if job.state != JobState.FINISHED or not files:
        raise NoModel(f"run {job.pk} has no finished model", found=f"its state is {job.state}")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", job.name).strip("-.")[:80] or "model"
    return f"{name}-{job.pk}.zip", _without_blocking(_packed(folder, files))


def _files(folder: Path) -> list[Path]:
    """The files of a model, without links: those may lead anywhere."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    inside = folder.resolve()
    return sorted(path for path in found if path.resolve().is_relative_to(inside))


async def _without_blocking(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, read in a thread so that the server does not block on the disk."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def _packed(folder: Path, files: list[Path]) -> Iterator[bytes]:
    out = _Out()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as packed:  # type: ignore[call-overload]  # write and flush do
        for path in files:
            about = zipfile.ZipInfo(str(path.relative_to(folder)), time.localtime(path.stat().st_mtime)[:6])
            about.external_attr = 0o644 << 16
            with path.open("rb") as file, packed.open(about, "w", force_zip64=True) as entry:
                while chunk := file.read(_CHUNK_BYTES):
                    entry.write(chunk)
                    yield out.take()
        packed.comment = b"made by holdfast"
    yield out.take()


class _Out:
    """A file object that collects what the zip writes until it is sent."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken
