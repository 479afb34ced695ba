"""Places of this machine where things lie on their way to the store or from it, out of the way of runs and pages."""

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.service.home import this_home

_HELD = "held"  # locked by who works there
_YOUNG_SECONDS = 5  # between a folder and its lock there is a moment


@contextlib.contextmanager
def staging_folder() -> Iterator[Path]:
    """An empty folder on the disk of the runs, that goes away again."""
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
    """One at a time on this machine, keeper or page, puts another folder in the place of a run's."""
    with (this_home().incoming / "swap.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep_staging() -> None:
    """Remove what killed processes left."""
    for folder in this_home().incoming.glob("store-*"):
        with contextlib.suppress(FileNotFoundError), (folder / _HELD).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
