"""Explains a failed write: where, why, how much space is left, and what to try."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from holdfast.core.errors import Advice, MachineError, NotNow, type_command
from holdfast.core.runfolder import REQUEST
from holdfast.core.text import human_bytes

FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The free space of a file system."""

    free_bytes: int
    total_bytes: int
    is_out_of_files: bool  # no inodes left, even if bytes are free


@contextmanager
def writing(run: Path, elsewhere: Advice = "") -> Iterator[None]:
    """Turn a full disk into an error that explains it, whatever was being written for a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise cannot_write(run, error, elsewhere) from error


def cannot_write(run: Path, error: OSError, elsewhere: Advice = "") -> MachineError:
    """The error for a run that cannot be written; `elsewhere` is advice on choosing another folder."""
    folder = run.absolute()
    place = Path(error.filename).absolute() if isinstance(error.filename, str) else folder
    is_own = place.is_relative_to(folder) or folder.is_relative_to(place)
    is_begun, is_full = (folder / REQUEST).is_file(), error.errno in FULL
    ways: list[Advice] = ["free some space" if is_full else "fix the cause"] if is_full or is_begun else []
    if is_begun:
        ways.append(type_command(f"holdfast resume {quote(str(folder))}", note="after that"))
    return (NotNow if is_begun else MachineError)(
        f"cannot write to {f'the run folder {folder}' if is_own else place}",
        found=why_not(error, place),
        try_next=[*ways, elsewhere] if elsewhere and is_own else ways,
        slug=slug_of(error),
    )


def cannot_put(what: str, target: Path, error: OSError, option: str) -> MachineError:
    """The error for a file that a person requested, such as a report; the option sets another path for it."""
    return MachineError(
        f"cannot write the {what} {target.absolute()}",
        found=why_not(error, target),
        try_next=[f"{option} FILE  (a path with free space that you may write to)"],
        slug=slug_of(error),
    )


def why_not(error: OSError, place: Path) -> str:
    """Why a path cannot be written; for a full disk, with the space that is left."""
    room = f"; {room_words(place)}" if error.errno == errno.ENOSPC else ""  # a quota is not about the disk's free space
    return f"{error.strerror or error}{room}"


def slug_of(error: OSError) -> str:
    """The hazard behind a failed write; empty if there is none."""
    return "disk-full" if error.errno in FULL else "permission-denied" if error.errno in _FORBIDDEN else ""


def room_at(place: Path) -> Room:
    """The space on the file system of a path, which need not exist yet."""
    standing = next(folder for folder in (place, *place.absolute().parents) if os.path.exists(folder))  # noqa: PTH110  (never raises)
    room = os.statvfs(standing)
    return Room(
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
        is_out_of_files=bool(room.f_files) and not room.f_favail,  # file systems without inodes report 0 of 0
    )


def room_words(place: Path) -> str:
    """The free space at a path as text."""
    room = room_at(place)
    files = "; no inodes left" if room.is_out_of_files else ""
    return f"{human_bytes(room.free_bytes)} free of {human_bytes(room.total_bytes)}{files}"
