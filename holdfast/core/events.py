"""The append-only story of an attempt: one JSON object a line.

Each line is written by one system call, so a reader sees whole lines, and a writer that is killed leaves at most the
lines it had finished.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.artifacts import to_plain


class Events:
    """Appends to one file of events."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # the writer before was killed in the middle of a line

    def write(self, event: str, **details: object) -> None:
        """Add one event with the time of day."""
        plain = {key: to_plain(item) for key, item in details.items()}
        line = json.dumps({"event": event, "time": round(time.time(), 3), **plain}, ensure_ascii=False)
        try:
            os.write(self._file, (line + "\n").encode())
        except OSError:  # a full disk: what is told must never end what it tells of
            print(line, file=sys.stderr, flush=True)


def read_events(path: Path) -> Iterator[dict[str, object]]:
    """Every whole event; the half line of a writer that was killed is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            yield event
