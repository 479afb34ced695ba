"""A small file with one writer that other machines read over shared storage: a record and an increasing count.

It is written in place and closed each time, never renamed: a network file system shows a reader that opens the file
what was last closed, while a new name in a folder may stay unseen for a minute. The count is written before and after
the record, so that a reader can tell a half-written notice from a whole one. No clock of another machine is ever
compared with one of ours: the age of a notice is the time since a reader saw its count move.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from holdfast.core.artifacts import to_plain
from holdfast.core.records import to_record

T = TypeVar("T")

_MOST_GAP_SECONDS = 5.0  # between two reads; after a longer gap, the time in between says nothing about the writer


@dataclass(frozen=True, slots=True)
class NoticeReading(Generic[T]):
    """What a writer last wrote."""

    count: int
    said: T


class NoticeWriter:
    """Writes one notice, again and again."""

    def __init__(self, path: Path):
        self.path = path
        before = read_notice(path, dict)
        self._count = before.count if before else 0

    def write(self, said: object) -> None:
        """Replace the content of the notice; raises OSError where the storage cannot be written."""
        self._count += 1
        text = json.dumps(to_plain(said), allow_nan=False)
        content = f"{self._count}\n{text}\n{self._count}\n".encode()
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, content, 0)
            os.ftruncate(file, len(content))
        finally:
            os.close(file)


def read_notice(path: Path, kind: type[T]) -> NoticeReading[T] | None:
    """The notice in a file; None if it is missing or only half-written at the moment."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        if len(lines) == 4 and lines[0] == lines[2]:
            said = to_record(json.loads(lines[1]), kind)
            return NoticeReading(int(lines[0]), said) if said is not None else None
    except (OSError, ValueError):
        pass
    return None


class Seen(Generic[T]):
    """A notice as one reader sees it: its newest content, and how long its count has not changed."""

    def __init__(self, path: Path, kind: type[T], clock: Callable[[], float] = time.monotonic):
        self.path, self._kind, self._clock = path, kind, clock
        self.newest: NoticeReading[T] | None = None
        self.has_moved = False
        self._looked_at: float | None = None
        self._still_seconds = 0.0

    def look(self) -> T | None:
        """Read it once. Time in which nothing was or could be read does not count against the writer."""
        now, found = self._clock(), read_notice(self.path, self._kind)
        if found is None:
            self._looked_at = None
            return self.said
        passed = now - self._looked_at if self._looked_at is not None else 0.0
        if self.newest is None or found.count != self.newest.count:
            self.has_moved = self.newest is not None
            self._still_seconds = 0.0
        elif passed <= _MOST_GAP_SECONDS:
            self._still_seconds += passed
        self._looked_at, self.newest = now, found
        return found.said

    @property
    def still_seconds(self) -> float:
        """How long its count has been seen unchanged."""
        return self._still_seconds

    @property
    def said(self) -> T | None:
        """Its newest content; None if nothing was read yet."""
        return self.newest.said if self.newest else None
