"""A small status file that one machine writes and others read over shared storage: its content, and a counter.

It is written in place and closed each time, never renamed: a network file system shows a reader that opens the file
what was last closed, while a new name in a folder may stay invisible for a minute. The counter is written before and
after the content, so that a reader recognizes a half-written notice. Clocks of different machines are never compared:
the age of a notice is the time since this reader saw its counter change.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import to_plain

_MOST_GAP_SECONDS = 5.0  # between two reads; after a longer gap the reader itself was suspended


@dataclass(frozen=True, slots=True)
class Notice:
    """The last content that a writer wrote."""

    count: int
    said: Mapping[str, Any]


class NoticeWriter:
    """Writes one notice repeatedly."""

    def __init__(self, path: Path):
        self.path = path
        before = read_notice(path)
        self._count = before.count if before else 0

    def write(self, said: Mapping[str, object]) -> None:
        """Write new content; raises OSError if the storage fails."""
        self._count += 1
        words = json.dumps(to_plain(said), allow_nan=False)
        content = f"{self._count}\n{words}\n{self._count}\n".encode()
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, content, 0)
            os.ftruncate(file, len(content))
        finally:
            os.close(file)


def read_notice(path: Path) -> Notice | None:
    """The notice in a file; None if it is missing or half-written at the moment."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        if len(lines) == 4 and lines[0] == lines[2]:
            said = json.loads(lines[1])
            return Notice(int(lines[0]), said) if isinstance(said, dict) else None
    except (OSError, ValueError):
        pass
    return None


class Seen:
    """A notice as one reader sees it: its newest content, and for how long its counter has not changed."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self.path, self._clock = path, clock
        self.newest: Notice | None = None
        self.has_moved = False
        self._looked_at: float | None = None
        self._still_seconds = 0.0

    def look(self) -> Notice | None:
        """Read once. Time in which the file could not be read, or was not read, does not count against the writer."""
        now, found = self._clock(), read_notice(self.path)
        if found is None:
            self._looked_at = None
            return self.newest
        passed = now - self._looked_at if self._looked_at is not None else 0.0
        if self.newest is None or found.count != self.newest.count:
            self.has_moved = self.newest is not None
            self._still_seconds = 0.0
        elif passed <= _MOST_GAP_SECONDS:
            self._still_seconds += passed
        self._looked_at, self.newest = now, found
        return found

    @property
    def still_seconds(self) -> float:
        """For how long the counter was seen not to change."""
        return self._still_seconds

    @property
    def said(self) -> Mapping[str, Any]:
        """Its newest content; empty before the first."""
        return self.newest.said if self.newest else {}
