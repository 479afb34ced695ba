"""Follows what the child itself tells in its events, whole lines only, at the cost of one look at the file's size."""

import json
from pathlib import Path

from holdfast.core.old_events import NewEvents

# What a person wants to hear of while it happens; steps and losses are for the views that ask.
_PASSED_ON = {
    *("uses", "resumed", "skipped checkpoint", "checkpoint damaged", "applied", "refused", "bad numbers"),
    *("save skipped", "save failed", "saving is dear", "from the beginning"),
}


class Told:
    """Reads the events that an attempt's processes add."""

    def __init__(self, path: Path):
        self._events = NewEvents(path)

    def new(self) -> list[dict[str, object]]:
        """The events worth passing on that came since the last call."""
        return [event for line in self._events.read_lines() if (event := _event(line))]


def _event(line: bytes) -> dict[str, object] | None:
    if not any(b'"%s"' % name.encode() in line for name in _PASSED_ON):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("event") in _PASSED_ON else None
