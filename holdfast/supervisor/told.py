"""Follows what the child itself tells in its events, whole lines only, at the cost of one look at the file's size."""

import json
from pathlib import Path

# What a person wants to hear of while it happens; steps and losses are for the views that ask.
_PASSED_ON = {
    *("uses", "resumed", "skipped checkpoint", "checkpoint damaged", "applied", "refused", "bad numbers"),
    *("save skipped", "saving is dear"),
}
_MOST_BYTES = 1 << 20  # at one look; the rest comes with the next


class Told:
    """Reads the events that an attempt's processes add."""

    def __init__(self, path: Path):
        self._path, self._at = path, 0

    def new(self) -> list[dict[str, object]]:
        """The events worth passing on that came since the last call."""
        try:
            if self._path.stat().st_size <= self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                chunk = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1] or (chunk if len(chunk) == _MOST_BYTES else b"")
        self._at += len(whole)
        return [event for line in whole.split(b"\n") if (event := _event(line))]


def _event(line: bytes) -> dict[str, object] | None:
    if not line or not any(b'"%s"' % name.encode() in line for name in _PASSED_ON):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("event") in _PASSED_ON else None
