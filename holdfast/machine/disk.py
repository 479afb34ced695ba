"""Room where a run really writes: links followed, variables resolved, missing folders taken as their nearest parent."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from holdfast.core.facts import Answer, Disk
from holdfast.core.groups import unescape
from holdfast.machine.hub import hub_cache_folder

Role = Literal["output", "cache", "temp"]


def probe_disks() -> Answer[dict[str, Any]]:
    """The folder a run writes to when started here, the hub's cache, and the folder for temporary files."""
    mounts_file = Path("/proc/self/mountinfo")
    mounts = mounts_file.read_text(errors="replace") if mounts_file.exists() else ""
    places: tuple[tuple[Role, Callable[[], Path]], ...] = (
        ("output", Path.cwd),
        ("cache", lambda: hub_cache_folder(os.environ)),
        ("temp", lambda: Path(tempfile.gettempdir())),
    )
    disks, unanswered = [], []
    for role, place in places:
        try:
            disks.append(disk_at(role, place(), mounts))
        except OSError as error:
            unanswered.append(f"where {role} would go: {error.strerror or error}")
    return Answer({"disks": tuple(disks), "unanswered": unanswered}, "statvfs of the nearest folder there is")


def disk_at(role: Role, path: Path, mountinfo: str = "") -> Disk:
    """Measure the file system that a path lies on, or would lie on once made."""
    real = path.resolve()
    standing = nearest_folder(real)
    room = os.statvfs(standing)
    in_the_way = any(parent.exists() and not parent.is_dir() for parent in (real, *real.parents))
    return Disk(
        role=role,
        path=str(real),
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
        filesystem=filesystem_of(standing, mountinfo),
        free_inodes=room.f_favail if room.f_files else None,  # file systems that count none say 0 of 0
        is_writable=os.access(standing, os.W_OK | os.X_OK) and not in_the_way,
    )


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def filesystem_of(folder: Path, mountinfo: str) -> str:
    """The type of the file system that a folder lies on, from the mount table; empty when it is not listed."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        at = Path(unescape(fields[4]))
        if (folder == at or at in folder.parents) and len(at.parts) >= best:
            best, kind = len(at.parts), right.split()[0]
    return kind


def probe_open_file_limit() -> Answer[int | None]:
    """How many files this process may hold open."""
    if sys.platform == "win32":
        return Answer(None, "this system has no such limit")
    import resource

    return Answer(resource.getrlimit(resource.RLIMIT_NOFILE)[0], "getrlimit RLIMIT_NOFILE")
