"""Writes and reads files of events: append-only, one JSON object per line.

Each line is written by one system call, so a reader sees whole lines, and a writer that is killed leaves at most the
lines it had finished. A line that this version does not understand is kept as an `UnknownEvent`.
"""

import contextlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, Union

import msgspec

from holdfast.core.events import Event, UnknownEvent, all_events

E = TypeVar("E", bound=Event)
EventSink = Callable[[Event], None]

_encoder = msgspec.json.Encoder(enc_hook=str)  # paths
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(
    Union[all_events()]  # noqa: UP007  # built from the list
)


class EventLog:
    """Appends events to one file. With `is_logged`, an event that does not fit on the disk goes to standard error."""

    _file = -1

    def __init__(self, path: Path, *, is_logged: bool = False):
        self._is_logged = is_logged
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        self._is_torn = bool(size) and os.pread(self._file, 1, size - 1) != b"\n"  # killed in the middle of a line

    def write(self, event: Event) -> None:
        """Append one event. A full disk does not end the run: the event is dropped, or printed."""
        line = encode(event)
        with contextlib.suppress(OSError):
            if not self._append(line) and self._is_logged:
                print(line.decode(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()  # a service opens many runs, one after the other

    def _append(self, line: bytes) -> bool:
        """Write a whole line. If only part of a line fit on the disk, that part is closed before the next line."""
        content = (b"\n" if self._is_torn else b"") + line + b"\n"
        try:
            written = os.write(self._file, content)
        except OSError:
            return False
        self._is_torn = written < len(content)
        return not self._is_torn


class EventTail:
    """Follows a file of events: returns those added since the last call."""

    def __init__(self, path: Path, most_bytes: int = 1 << 20, at: int = 0):
        self._path, self._most_bytes, self._at = path, most_bytes, at

    @property
    def at(self) -> int:
        """The offset read so far, from which a later tail may continue."""
        return self._at

    def read(self) -> list[Event]:
        """The new events; what exceeds `most_bytes` comes with the next call."""
        try:
            if self._path.stat().st_size <= self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                chunk = file.read(self._most_bytes)
        except OSError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1] or (chunk if len(chunk) == self._most_bytes else b"")
        self._at += len(whole)
        return [event for line in whole.split(b"\n") if (event := decode(line))]


def read_events(path: Path) -> Iterator[Event]:
    """Every whole event of a file; none when it is missing. A half line of a killed writer is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if event := decode(line):
                yield event


def read_last_events(path: Path, most_bytes: int = 1 << 19) -> list[Event]:
    """The events at the end of a long file, for a view that is redrawn twice a second."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    whole = lines if size <= most_bytes else lines[1:]  # the first is cut
    return [event for line in whole if (event := decode(line))]


def find_last(path: Path, kind: type[E]) -> E | None:
    """The newest event of one kind, however far back in the file."""
    name = kind.event_name()
    needles = (f'"event":"{name}"'.encode(), f'"event": "{name}"'.encode())  # the preload writes a space
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = max(content.rfind(needle) for needle in needles)
            if at < 0:
                return None
            end = content.find(b"\n", at)
            found = decode(content[content.rfind(b"\n", 0, at) + 1 : len(content) if end < 0 else end])
            return found if isinstance(found, kind) else None
    except (OSError, ValueError):  # missing or empty
        return None


def encode(event: Event) -> bytes:
    """One line without its line break. JSON has neither NaN nor infinity: they become null."""
    if isinstance(event, UnknownEvent):
        return _encoder.encode({"event": event.was, "time": event.time, **event.fields})
    return _encoder.encode(event)


def decode(line: bytes) -> Event | None:
    """The event of one line; None for a line that is not one whole JSON object with an event's name."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        pass
    try:
        found: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        name, at = str(found.pop("event")), float(found.pop("time", 0.0))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
    return UnknownEvent(was=name, time=at, fields=found)
