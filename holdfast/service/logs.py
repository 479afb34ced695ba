"""Keeps the logs of processes that run for months small: a full one is set aside, and the file begins anew."""

import contextlib
import os
import shutil
from pathlib import Path

MOST_BYTES = 20 * 1024**2
KEPT = 2  # earlier ones: web.log.1, and web.log.2 before it


def open_log(path: Path) -> int:
    """A descriptor for a child's output; each write goes to the end, wherever that is by then."""
    turn_over(path)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def turn_over(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Set a full log aside, also while a process writes to it: it is copied and emptied, so its file stays the same.

    What is written between the two is lost; that is at most a line of a log of 20 MB.
    """
    try:
        if path.stat().st_size <= most_bytes:
            return False
        for number in range(KEPT, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                _earlier(path, number - 1).replace(_earlier(path, number))
        shutil.copyfile(path, _earlier(path, 1))
        _earlier(path, 1).chmod(0o600)
        os.truncate(path, 0)
    except OSError:  # a disk without room for a copy: a long log is better than none
        return False
    return True


def _earlier(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
