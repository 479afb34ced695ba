"""Temporary folders for files on their way to or from the object store, out of sight of runs and pages."""

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.service.home import this_home

_HELD = "held"  # locked by the process that works there
_YOUNG_SECONDS = 5  # a folder exists for a moment before its lock


@contextlib.contextmanager
def staging_folder() -> Iterator[Path]:
    """An empty temporary folder on the disk of the runs."""
    home = this_home()
    home.make()
    with (
        tempfile.TemporaryDirectory(prefix="store-", dir=home.incoming) as made,
        (Path(made) / _HELD).open("wb") as file,
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        folder = Path(made) / "files"
        folder.mkdir(mode=0o700)
        yield folder


@contextlib.contextmanager
def swap_lock() -> Iterator[None]:
    """A lock for replacing a run folder by another: one process at a time on this machine, agent or page."""
    with (this_home().incoming / "swap.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep_staging() -> None:
    """Remove what killed processes left behind."""
    for folder in this_home().incoming.glob("store-*"):
        with contextlib.suppress(FileNotFoundError), (folder / _HELD).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
