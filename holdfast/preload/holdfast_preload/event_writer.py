"""Appends the preload's events to `events.jsonl`: one JSON object per line, one system call each.

The structs of these events are in `holdfast.core.events`, which scripts cannot import; a test decodes what is written
here by those structs.
"""

from __future__ import annotations

import os
import time

_path = ""
_written: set[str] = set()


def open_in(attempt: str) -> None:
    """Write into this attempt's events."""
    global _path
    _path = os.path.join(attempt, "events.jsonl")


def write(event: str, **details: object) -> None:
    """Add one event; drop it if it cannot be written."""
    if not _path:
        return
    import json

    try:
        content = {"event": event, "time": round(time.time(), 3), "pid": os.getpid(), **details}
        line = json.dumps(content, default=str, separators=(",", ":"))
        file = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (line + "\n").encode())
        finally:
            os.close(file)
    except (OSError, ValueError, TypeError):
        pass


def write_once(event: str, **details: object) -> None:
    """Add one event unless this process has already written the same."""
    key = repr((event, sorted(details.items(), key=str)))
    if key not in _written:
        _written.add(key)
        write(event, **details)


def applied(change: str, value: object, how: str) -> None:
    """Report that a change of the plan was applied to the script."""
    write_once("change_applied", change=change, value=value, how=how)


def refused(change: str, value: object, because: str) -> None:
    """Report that a change of the plan is not possible in this script."""
    write_once("change_refused", change=change, value=value, because=because)
