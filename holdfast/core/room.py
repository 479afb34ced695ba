"""Says that a run's folder cannot be written: where it lies, why, how much room there is, and what to try."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import MachineError
from holdfast.core.runfolder import REQUEST
from holdfast.core.text import human_bytes

FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def writing(run: Path, elsewhere: str = "") -> Iterator[None]:
    """Say a full disk in words, whatever was being written to the folder of a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise cannot_write(run, error, elsewhere) from error


def cannot_write(run: Path, error: OSError, elsewhere: str = "") -> MachineError:
    """The error for a run's folder that cannot be written; `elsewhere` is how another one is chosen."""
    folder, is_full = run.absolute(), error.errno in FULL
    room = f"; {room_words(folder)}" if is_full else ""
    again = f"then: holdfast resume {folder}" if (folder / REQUEST).is_file() else "then start it again"
    return MachineError(
        f"the run folder {folder} cannot be written",
        seen=f"{error.strerror or error}{room}",
        try_next=(*((f"make room, {again}",) if is_full else ()), *filter(None, (elsewhere,))),
        slug="disk-full" if is_full else "permission-denied" if error.errno in _FORBIDDEN else "",
    )


def room_words(place: Path) -> str:
    """How much room is left where a file or folder lies, or would lie."""
    standing = next(folder for folder in (place, *place.parents) if folder.exists())
    room = os.statvfs(standing)
    files = "; no more files can be made" if room.f_files and not room.f_favail else ""
    return f"{human_bytes(room.f_bavail * room.f_frsize)} free of {human_bytes(room.f_blocks * room.f_frsize)}{files}"
