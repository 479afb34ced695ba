"""The append-only story of an attempt: one JSON object a line.

Each line is written by one system call, so a reader sees whole lines, and a writer that is killed leaves at most the
lines it had finished.
"""

import contextlib
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
        self._is_torn = bool(size) and os.pread(self._file, 1, size - 1) != b"\n"  # killed in the middle of a line

    def write(self, event: str, **details: object) -> None:
        """Add one event with the time of day."""
        plain = {key: to_plain(item) for key, item in details.items()}
        line = json.dumps({"event": event, "time": round(time.time(), 3), **plain}, ensure_ascii=False, allow_nan=False)
        # A full disk must not end what is told of: the line goes to the log, which may be as full.
        with contextlib.suppress(OSError):
            if not self._append(line):
                print(line, file=sys.stderr, flush=True)

    def _append(self, line: str) -> bool:
        """Write a whole line; a part of it that still fitted on the disk is closed off before the next one."""
        content = (b"\n" if self._is_torn else b"") + line.encode() + b"\n"
        try:
            written = os.write(self._file, content)
        except OSError:
            return False
        self._is_torn = written < len(content)
        return not self._is_torn


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
