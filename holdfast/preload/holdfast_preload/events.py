"""The preload's part of the attempt's story: one JSON object a line in `events.jsonl`, appended by one system call."""

from __future__ import annotations

import os
import time

_path = ""
_told: set[str] = set()


def open_in(attempt: str) -> None:
    """Write into this attempt's events."""
    global _path
    _path = os.path.join(attempt, "events.jsonl")


def write(event: str, **details: object) -> None:
    """Add one event; one that cannot be written is dropped."""
    if not _path:
        return
    import json

    try:
        line = json.dumps({"event": event, "time": round(time.time(), 3), "pid": os.getpid(), **details}, default=str)
        file = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (line + "\n").encode())
        finally:
            os.close(file)
    except (OSError, ValueError, TypeError):
        pass


def write_once(event: str, **details: object) -> None:
    """Add one event unless this process has told the same before."""
    key = repr((event, sorted(details.items(), key=str)))
    if key not in _told:
        _told.add(key)
        write(event, **details)


def applied(change: str, value: object, how: str) -> None:
    """Say that a change of the plan reached the script."""
    write_once("applied", change=change, value=value, how=how)


def refused(change: str, value: object, because: str) -> None:
    """Say that a change of the plan cannot be made in this script."""
    write_once("refused", change=change, value=value, because=because)
