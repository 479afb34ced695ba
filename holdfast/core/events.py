"""The append-only story of an attempt: one JSON object a line.

Each line is written by one system call, so a reader sees whole lines, and a writer that is killed leaves at most the
lines it had finished.
"""

import contextlib
import json
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import to_plain


class Events:
    """Appends to one file of events; what the disk has no room for may go to standard error, where that is a log."""

    _file = -1

    def __init__(self, path: Path, *, is_logged: bool = False):
        self._is_logged = is_logged
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        self._is_torn = bool(size) and os.pread(self._file, 1, size - 1) != b"\n"  # killed in the middle of a line

    def write(self, event: str, **details: object) -> None:
        """Add one event with the time of day."""
        plain = {key: to_plain(item) for key, item in details.items()}
        line = json.dumps({"event": event, "time": round(time.time(), 3), **plain}, ensure_ascii=False, allow_nan=False)
        # A full disk must not end what is told of: the line goes to the log, which may be as full.
        with contextlib.suppress(OSError):
            if not self._append(line) and self._is_logged:
                print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        """Let go of the file also where nobody says so: a service holds many runs, one after the other."""
        self.close()

    def _append(self, line: str) -> bool:
        """Write a whole line; a part of it that still fitted on the disk is closed off before the next one."""
        content = (b"\n" if self._is_torn else b"") + line.encode() + b"\n"
        try:
            written = os.write(self._file, content)
        except OSError:
            return False
        self._is_torn = written < len(content)
        return not self._is_torn


class NewEvents:
    """Follows a file of events: gives the whole ones that came since the last time, at the cost of those alone."""

    def __init__(self, path: Path, most_bytes: int = 1 << 20, at: int = 0):
        self._path, self._most_bytes, self._at = path, most_bytes, at

    @property
    def at(self) -> int:
        """How far it has read: where another one, made later, may go on."""
        return self._at

    def read_lines(self) -> list[bytes]:
        """The new lines; what is more than the most at one look comes with the next."""
        try:
            if self._path.stat().st_size <= self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                chunk = file.read(self._most_bytes)
        except OSError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1] or (chunk if len(chunk) == self._most_bytes else b"")
        self._at += len(whole)
        return [line for line in whole.split(b"\n") if line]

    def read(self) -> list[dict[str, Any]]:
        """The new events."""
        return [event for line in self.read_lines() if (event := _event(line))]


def read_events(path: Path) -> Iterator[dict[str, object]]:
    """Every whole event; the half line of a writer that was killed is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if event := _event(line):
                yield event


def read_last_events(path: Path, most_bytes: int = 1 << 19) -> list[dict[str, object]]:
    """The events at the end of a file that may be long: for a view that is drawn twice a second."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    whole = lines if size <= most_bytes else lines[1:]  # the first is cut
    return [event for line in whole if (event := _event(line))]


def find_last_event(path: Path, name: str) -> dict[str, object] | None:
    """The newest event of one name, however far back it lies."""
    needle = f'"event": "{name}"'.encode()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.rfind(needle)
            if at < 0:
                return None
            end = content.find(b"\n", at)
            return _event(content[content.rfind(b"\n", 0, at) + 1 : len(content) if end < 0 else end])
    except (OSError, ValueError):  # absent or empty
        return None


def _event(line: bytes) -> dict[str, object] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
