"""Where everything that happens to a run is reported: to its event log first, then to all listeners."""

from pathlib import Path

from holdfast.core.event_log import EventLog, EventSink
from holdfast.core.events import MOVING, Event
from holdfast.core.runfolder import EVENTS


class RunEvents:
    """Appends each event to events.jsonl in a folder and hands it to every listener, in their order.

    Events that only show movement are not written: there are several a second.
    """

    def __init__(self, folder: Path, *listeners: EventSink):
        self._log, self._listeners = EventLog(folder / EVENTS), listeners

    def __call__(self, event: Event) -> None:
        """Report one event."""
        if not isinstance(event, MOVING):
            self._log.write(event)
        for hear in self._listeners:
            hear(event)
