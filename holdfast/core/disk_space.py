"""Says that something cannot be written: where it lies, why, how much room there is, and what to try."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import MachineError, NotNow
from holdfast.core.runfolder import REQUEST
from holdfast.core.text import human_bytes

FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is left of a file system."""

    free_bytes: int
    total_bytes: int
    is_out_of_files: bool  # no more can be made, whatever is free


@contextmanager
def writing(run: Path, elsewhere: str = "") -> Iterator[None]:
    """Say a full disk in words, whatever was being written for a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise cannot_write(run, error, elsewhere) from error


def cannot_write(run: Path, error: OSError, elsewhere: str = "") -> MachineError:
    """The error for a run that cannot be written; `elsewhere` is how another folder is chosen for it."""
    folder = run.absolute()
    place = Path(error.filename).absolute() if isinstance(error.filename, str) else folder
    is_own = place.is_relative_to(folder) or folder.is_relative_to(place)
    is_begun, is_full = (folder / REQUEST).is_file(), error.errno in FULL
    first = "make room" if is_full else "put that right"
    again = f"then: holdfast resume {folder}" if is_begun else "then start it again"
    ways = [f"{first}, {again}"] if is_full or is_begun else []
    return (NotNow if is_begun else MachineError)(
        f"{f'the run folder {folder}' if is_own else place} cannot be written",
        seen=why_not(error, place),
        try_next=(*ways, elsewhere) if elsewhere and is_own else tuple(ways),
        slug=slug_of(error),
    )


def cannot_put(what: str, target: Path, error: OSError, option: str) -> MachineError:
    """The error for a file that is made for a person, such as a report; `option` names another place for it."""
    return MachineError(
        f"the {what} {target.absolute()} cannot be written",
        seen=why_not(error, target),
        try_next=(f"{option} FILE, at a place with room that you may write to",),
        slug=slug_of(error),
    )


def why_not(error: OSError, place: Path) -> str:
    """Why a place cannot be written, with the room that is left there where that is the cause."""
    room = f"; {room_words(place)}" if error.errno == errno.ENOSPC else ""  # a quota is not the room of the disk
    return f"{error.strerror or error}{room}"


def slug_of(error: OSError) -> str:
    """The hazard that a write has met; empty where it is none of ours."""
    return "disk-full" if error.errno in FULL else "permission-denied" if error.errno in _FORBIDDEN else ""


def room_at(place: Path) -> Room:
    """The room where a file or folder lies, or would lie."""
    standing = next(folder for folder in (place, *place.absolute().parents) if os.path.exists(folder))  # noqa: PTH110  (never raises)
    room = os.statvfs(standing)
    return Room(
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
        is_out_of_files=bool(room.f_files) and not room.f_favail,  # file systems that count none say 0 of 0
    )


def room_words(place: Path) -> str:
    """The same for people."""
    room = room_at(place)
    files = "; no more files can be made" if room.is_out_of_files else ""
    return f"{human_bytes(room.free_bytes)} free of {human_bytes(room.total_bytes)}{files}"
