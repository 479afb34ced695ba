"""Checkpoint folders that are whole or absent: a draft is synced, checksummed and renamed into place.

`manifest.json` in the folder has the checksums of all its other files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from typing import Any, Callable

_MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20
_KEEP = 2


def write(folder: str, fill: Callable[[str], None]) -> None:
    """Make a folder, or replace an older one; `fill` writes its files into the draft it is given."""
    draft = folder + ".partial"
    shutil.rmtree(draft, ignore_errors=True)
    os.makedirs(draft)
    fill(draft)
    checksums = {}
    for name in os.listdir(draft):
        sync(os.path.join(draft, name))
        checksums[name] = _checksum(os.path.join(draft, name))
    write_json(os.path.join(draft, _MANIFEST), checksums)
    sync(os.path.join(draft, _MANIFEST))
    sync(draft)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(draft, folder)
    sync(os.path.dirname(folder))


def why_broken(folder: str) -> str:
    """What is wrong with a folder; empty if it is intact."""
    try:
        for name, checksum in read_json(folder, _MANIFEST).items():
            if _checksum(os.path.join(folder, name)) != checksum:
                return f"{name} has another checksum than when it was saved"
    except (OSError, ValueError) as error:
        return repr(error)
    return ""


def keep_few(folder: str) -> None:
    """Remove all but the two newest of a folder's checkpoints, and drafts that a kill left behind."""
    paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    for path in sorted(paths, key=os.path.getmtime)[:-_KEEP]:
        shutil.rmtree(path, ignore_errors=True)


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a JSON object."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def read_json(folder: str, name: str) -> dict[str, Any]:
    """Read a JSON object from a file of a folder."""
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        content = json.load(file)
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not an object")
    return content


def sync(path: str) -> None:
    """Wait until a file or folder is on disk."""
    with contextlib.suppress(OSError):  # a file system without it
        file = os.open(path, os.O_RDONLY)
        try:
            _flush(file)
        finally:
            os.close(file)


def _flush(file: int) -> None:
    """As `holdfast.core.artifacts.flush_to_disk`, which scripts cannot import: fsync of macOS leaves it in a cache."""
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):  # not on every file system
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
    os.fsync(file)


def _checksum(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
