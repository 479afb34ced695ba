"""Folders of prepared data that appear whole or not at all, and the cache that runs share.

A folder is written as a draft beside its place and renamed at the end. Drafts of processes that are gone are removed.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.room import FULL, why_not
from holdfast.core.runfolder import MANIFEST

KEPT = 8  # preparations in the cache


def build_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder that appears whole or not at all."""
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear_drafts(folder)
        draft.mkdir()
        write(draft)
        sync(draft)
        if folder.exists():
            _remove_prepared(folder)
        draft.rename(folder)
        sync(folder.parent)
    except OSError as error:
        if error.errno in FULL:
            raise MachineError(
                f"the disk is full: the prepared data did not fit in {folder.parent}",
                seen=why_not(error, folder.parent),
                try_next=("make room, or give a folder on another disk",),
                slug="disk-full",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise MachineError(f"the folder {folder.parent} cannot be written to", seen=str(error)) from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _clear_drafts(folder: Path) -> None:
    """Remove what preparations that were killed left behind; one that still runs is left alone."""
    for draft in folder.parent.glob(f".{folder.name}.draft-*"):
        pid = draft.name.rpartition("-")[2]
        if not (pid.isdigit() and _is_alive(int(pid))) or int(pid) == os.getpid():
            shutil.rmtree(draft, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove_prepared(folder: Path) -> None:
    """Remove an older preparation; refuse when the folder holds anything else."""
    strange = [path.name for path in folder.iterdir() if path.suffix != ".npy" and path.name != MANIFEST]
    if strange:
        raise RequestError(
            f"{folder} is not empty and holds no prepared data", seen=", ".join(strange[:5]), try_next=("move it away",)
        )
    shutil.rmtree(folder)


def link_files(home: Path, draft: Path) -> None:
    """Put the files of the cache into a run's folder: the same bytes on the disk, where links are possible."""
    for path in sorted(home.iterdir(), key=lambda path: path.name == MANIFEST):
        try:
            os.link(path, draft / path.name)
        except OSError as error:
            if error.errno in FULL:
                raise
            shutil.copyfile(path, draft / path.name)


def forget_oldest(cache: Path) -> None:
    """Keep the preparations that were used last."""
    entries = [path for path in cache.iterdir() if path.is_dir() and not path.name.startswith(".")]
    entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[KEPT:]:
        if (path / MANIFEST).is_file():
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Make sure that a file or a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
