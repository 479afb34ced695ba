"""Asks how much space is left where an attempt writes: `torch.save` on a full disk does not say that it is full.

Checks the run's own folder, the folder the command ran in, those that its arguments and events name, the temporary
folder and shared memory. A disk that does not answer is skipped: asking it would take forever.
"""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.disk_space import room_at
from holdfast.core.event_log import read_events
from holdfast.core.events import DiskFull, PartUsed
from holdfast.core.observations import DiskSpace
from holdfast.core.records import ChildInfo, read_record
from holdfast.core.runfolder import EVENTS

_ASK_SECONDS = 2.0
_LITTLE_BYTES = 1_000_000_000
_MOST_FOLDERS = 24
_CHECK_SECONDS = 10.0
_NO_ROOM_BYTES = 1 << 16  # with less, the child cannot even report a failed save


class FullDisk:
    """Notices that the disk of an attempt's folder has become full. Asks in a thread: the answer may never come."""

    def __init__(self, attempt: Path):
        self._attempt = attempt
        self._asker: threading.Thread | None = None
        self._asked_at, self._is_full = float("-inf"), False
        self._new: DiskFull | None = None

    def check(self, now: float) -> DiskFull | None:
        """The event of a disk that became full since the last call: one, until there is room again."""
        if now - self._asked_at >= _CHECK_SECONDS and not (self._asker and self._asker.is_alive()):
            self._asked_at, self._asker = now, threading.Thread(target=self._ask, name="disk", daemon=True)
            self._asker.start()
        new, self._new = self._new, None
        return new

    def _ask(self) -> None:
        try:
            room = room_at(self._attempt)
        except OSError:
            return
        was_full, self._is_full = self._is_full, room.free_bytes < _NO_ROOM_BYTES or room.is_out_of_files
        if self._is_full and not was_full:
            self._new = DiskFull(folder=str(self._attempt), free_bytes=room.free_bytes)


def find_disk_space(attempt: Path) -> list[DiskSpace]:
    """Each file system that has little space left, and shared memory."""
    found: list[DiskSpace] = []
    asker = threading.Thread(target=lambda: found.extend(_ask(attempt)), daemon=True)
    asker.start()
    asker.join(_ASK_SECONDS)
    return list(found)


def _ask(attempt: Path) -> Iterator[DiskSpace]:
    seen: set[int] = set()
    for folder in list(dict.fromkeys(_folders(attempt)))[:_MOST_FOLDERS]:
        try:
            device = folder.stat().st_dev
            room = room_at(folder)
        except OSError:
            continue
        if device in seen or room.total_bytes == 0:
            continue
        seen.add(device)
        space = DiskSpace(
            folder=str(folder),
            free_bytes=room.free_bytes,
            total_bytes=room.total_bytes,
            is_output=folder == attempt,
            is_out_of_inodes=room.is_out_of_files,
        )
        if space.is_shared_memory or space.is_out_of_inodes or space.free_bytes < _LITTLE_BYTES:
            yield space


def _folders(attempt: Path) -> Iterator[Path]:
    yield attempt
    for event in read_events(attempt / EVENTS):
        if isinstance(event, PartUsed) and event.output_dir:
            yield from _nearest(Path(event.output_dir))
    child = read_record(attempt, ChildInfo)
    cwd = Path(child.cwd if child else ".")
    yield cwd
    for word in child.command if child else ():
        path = word.rpartition("=")[2]
        if "/" in path or (cwd / path).is_dir():
            yield from _nearest(cwd / path)
    yield Path(tempfile.gettempdir())
    if Path("/dev/shm").is_dir():
        yield Path("/dev/shm")


def _nearest(path: Path) -> Iterator[Path]:
    """The folder itself, or the nearest one above it that exists."""
    for folder in (path, *path.parents):
        if folder.is_dir():
            yield folder
            return
