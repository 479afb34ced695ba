"""Asks how much room is left where an attempt writes: `torch.save` on a full disk does not say that it is full.

Looks at the run's own folder, the folder the command ran in, those its arguments and its events name, the temporary
folder and shared memory. A disk that does not answer is passed over: asking it would wait for ever.
"""

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.disk_space import room_at, room_words
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import CHILD, EVENTS
from holdfast.core.text import human_bytes

_ASK_SECONDS = 2.0
_LITTLE_BYTES = 1_000_000_000
_MOST_FOLDERS = 24
_LOOK_SECONDS = 10.0
_NO_ROOM_BYTES = 1 << 16  # in less the child cannot even tell of a save that failed


class FullDisk:
    """Notices that the disk of an attempt's folder has become full. Asks in a thread: the answer may never come."""

    def __init__(self, attempt: Path):
        self._attempt = attempt
        self._asker: threading.Thread | None = None
        self._asked_at, self._is_full, self._words = float("-inf"), False, ""

    def look(self, now: float) -> str:
        """What is to be told since the last look: once, until there is room again."""
        if now - self._asked_at >= _LOOK_SECONDS and not (self._asker and self._asker.is_alive()):
            self._asked_at, self._asker = now, threading.Thread(target=self._ask, name="room", daemon=True)
            self._asker.start()
        words, self._words = self._words, ""
        return words

    def _ask(self) -> None:
        try:
            room = room_at(self._attempt)
        except OSError:
            return
        was_full, self._is_full = self._is_full, room.free_bytes < _NO_ROOM_BYTES or room.is_out_of_files
        if self._is_full and not was_full:
            self._words = f"the disk is full: {room_words(self._attempt)} at {self._attempt}; make room"


def room_lines(attempt: Path) -> list[str]:
    """One line for each file system that has little room, and one for shared memory."""
    lines: list[str] = []
    asker = threading.Thread(target=lambda: lines.extend(_ask(attempt)), daemon=True)
    asker.start()
    asker.join(_ASK_SECONDS)
    return list(lines)


def _ask(attempt: Path) -> Iterator[str]:
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
        is_shm = folder == Path("/dev/shm")
        if is_shm or room.free_bytes < _LITTLE_BYTES:
            own = ", where its own output goes" if folder == attempt else ""
            yield f"free space on {folder}: {human_bytes(room.free_bytes)} of {human_bytes(room.total_bytes)}{own}"
        if room.is_out_of_files:
            yield f"free space on {folder}: 0 bytes for new files, all its file entries are used"


def _folders(attempt: Path) -> Iterator[Path]:
    yield attempt
    for event in read_events(attempt / EVENTS):
        if event.get("event") == "uses" and event.get("output_dir"):
            yield from _nearest(Path(str(event["output_dir"])))
    try:
        child = json.loads((attempt / CHILD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        child = {}
    cwd = Path(child.get("cwd") or ".")
    yield cwd
    for word in child.get("command") or ():
        path = str(word).rpartition("=")[2]
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
