"""A small file with one writer that other machines read over shared storage: what it says, and a count that moves.

It is written in place and closed each time, never renamed: a network file system shows a reader that opens the file
what was last closed, while a new name in a folder may stay unseen for a minute. The count stands before and after the
words, so that a reader knows half of a notice from a whole one. No clock of another machine is ever compared with one
of ours: how old a notice is says the time since a reader saw its count move.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import to_plain

_MOST_GAP_SECONDS = 5.0  # between two looks, after which the time in between says nothing about the writer


@dataclass(frozen=True, slots=True)
class Notice:
    """What a writer last said."""

    count: int
    said: Mapping[str, Any]


class NoticeWriter:
    """Writes one notice, again and again."""

    def __init__(self, path: Path):
        self.path = path
        before = read_notice(path)
        self._count = before.count if before else 0

    def write(self, said: Mapping[str, object]) -> None:
        """Say this from now on; raises OSError where the storage does not take it."""
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
    """The notice that stands there; None where there is none, or only half of one for this instant."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        if len(lines) == 4 and lines[0] == lines[2]:
            said = json.loads(lines[1])
            return Notice(int(lines[0]), said) if isinstance(said, dict) else None
    except (OSError, ValueError):
        pass
    return None


class Seen:
    """A notice as one reader sees it: its newest words, and for how long they have not moved."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self.path, self._clock = path, clock
        self.newest: Notice | None = None
        self.has_moved = False
        self._looked_at: float | None = None
        self._still_seconds = 0.0

    def look(self) -> Notice | None:
        """Look once. Time in which nothing could be read, or nobody looked, does not count against the writer."""
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
        """For how long its count was seen to stand still."""
        return self._still_seconds

    @property
    def said(self) -> Mapping[str, Any]:
        """Its newest words; empty before the first."""
        return self.newest.said if self.newest else {}
