"""Reads run folders for those who look again every two seconds: what was read before is not read again.

A file of events is followed from where the last look ended, and long ones are thinned: of a million steps a page shows
a few thousand. Files that are missing, half or strange are as if they were absent.
"""

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from holdfast.core.old_events import NewEvents
from holdfast.core.runfolder import EVENTS, SAMPLES, attempt_folders
from holdfast.runs.story import AttemptStory, Story, read_story

Json = dict[str, Any]

_KEPT_FILES = 256
_MOST_EVENTS = 4000  # of one file; a chart draws 500 points
_COMMON = ("step", "log", "sample", "phase", "saved")  # what comes by the thousand


class _File:
    """The events of one file so far."""

    def __init__(self, path: Path):
        self._new = NewEvents(path)
        self._lock = threading.Lock()
        self._every, self._seen, self._common = 1, 0, 0
        self.events: list[Json] = []

    def look(self) -> list[Json]:
        """Everything told so far, thinned evenly; the newest is always there."""
        with self._lock:
            while fresh := self._new.read():
                for event in fresh:
                    self._keep(event)
            return list(self.events)

    def _keep(self, event: Json) -> None:
        if event.get("event") not in _COMMON:
            self.events.append(event)
            return
        self._seen += 1
        if self._seen % self._every and self.events and self.events[-1].get("event") == event["event"]:
            self.events[-1] = event  # in between: the newest stands until the next one that is kept
            return
        self.events.append(event)
        self._common += 1
        if self._common > _MOST_EVENTS:
            self._thin()

    def _thin(self) -> None:
        """Drop every second of the common ones, but not the newest."""
        kept, at = [], 0
        for event in self.events[:-1]:
            at += event.get("event") in _COMMON
            if event.get("event") not in _COMMON or at % 2:
                kept.append(event)
        self.events = [*kept, self.events[-1]]
        self._every *= 2
        self._common = sum(event.get("event") in _COMMON for event in self.events)


_files: OrderedDict[tuple[str, int], _File] = OrderedDict()
_lock = threading.Lock()


def follow_events(path: Path) -> list[Json]:
    """The events of a file, at the cost of those that are new."""
    try:
        key = (str(path), path.stat().st_ino)
    except OSError:
        return []
    with _lock:
        file = _files.setdefault(key, _File(path))
        _files.move_to_end(key)
        while len(_files) > _KEPT_FILES:
            _files.popitem(last=False)
    return file.look()


def follow_story(run: Path) -> Story:
    """A run folder as one story, its long files followed; RequestError where there is no run in it."""
    story = read_story(run)
    for attempt in story.attempts:
        attempt.__dict__["events"] = follow_events(attempt.folder / EVENTS)  # where its cached property would put them
        attempt.__dict__["samples"] = follow_events(attempt.folder / SAMPLES)
    return story


def marks_of(run: Path) -> tuple[object, ...]:
    """What changes whenever the folder does, from sizes and times alone: cheap enough for every look."""
    try:
        folders = attempt_folders(run)
    except (OSError, ValueError):
        folders = []
    newest = folders[-1] if folders else None
    return (
        tuple(_marks(run)),
        len(folders),
        tuple(_marks(newest)) if newest else (),
        AttemptStory(newest, len(folders)).beat if newest else None,
    )


def _marks(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    try:
        for entry in folder.iterdir():
            if not entry.name.startswith("."):
                about = entry.stat()
                found.append((entry.name, about.st_mtime_ns, about.st_size))
    except OSError:
        pass
    return sorted(found)
