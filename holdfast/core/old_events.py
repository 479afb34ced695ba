"""The append-only story of an attempt: one JSON object a line.

Each line is written by one system call, so a reader sees whole lines, and a writer that is killed leaves at most the
lines it had finished.
"""

import contextlib
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core import events as typed
from holdfast.core.artifacts import to_plain


class Events:
    """Appends to one file of events; what the disk has no room for may go to standard error, where that is a log."""

    _file = -1

    def __init__(self, path: Path, *, is_logged: bool = False):
        self._is_logged = is_logged
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        self._is_torn = bool(size) and os.pread(self._file, 1, size - 1) != b"\n"  # killed in the middle of a line

    def write(self, event: str, **details: object) -> None:
        """Add one event with the time of day."""
        plain = {key: to_plain(item) for key, item in details.items()}
        line = json.dumps({"event": event, "time": round(time.time(), 3), **plain}, ensure_ascii=False, allow_nan=False)
        # A full disk must not end what is told of: the line goes to the log, which may be as full.
        with contextlib.suppress(OSError):
            if not self._append(line) and self._is_logged:
                print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        """Let go of the file also where nobody says so: a service holds many runs, one after the other."""
        self.close()

    def _append(self, line: str) -> bool:
        """Write a whole line; a part of it that still fitted on the disk is closed off before the next one."""
        content = (b"\n" if self._is_torn else b"") + line.encode() + b"\n"
        try:
            written = os.write(self._file, content)
        except OSError:
            return False
        self._is_torn = written < len(content)
        return not self._is_torn


class NewEvents:
    """Follows a file of events: gives the whole ones that came since the last time, at the cost of those alone."""

    def __init__(self, path: Path, most_bytes: int = 1 << 20, at: int = 0):
        self._path, self._most_bytes, self._at = path, most_bytes, at

    @property
    def at(self) -> int:
        """How far it has read: where another one, made later, may go on."""
        return self._at

    def read_lines(self) -> list[bytes]:
        """The new lines; what is more than the most at one look comes with the next."""
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
        return [line for line in whole.split(b"\n") if line]

    def read(self) -> list[dict[str, Any]]:
        """The new events."""
        return [event for line in self.read_lines() if (event := _event(line))]


def read_events(path: Path) -> Iterator[dict[str, object]]:
    """Every whole event; the half line of a writer that was killed is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if event := _event(line):
                yield event


def read_last_events(path: Path, most_bytes: int = 1 << 19) -> list[dict[str, object]]:
    """The events at the end of a file that may be long: for a view that is drawn twice a second."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    whole = lines if size <= most_bytes else lines[1:]  # the first is cut
    return [event for line in whole if (event := _event(line))]


def find_last_event(path: Path, name: str) -> dict[str, object] | None:
    """The newest event of one name, however far back it lies."""
    needle = f'"event": "{name}"'.encode()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.rfind(needle)
            if at < 0:
                return None
            end = content.find(b"\n", at)
            return _event(content[content.rfind(b"\n", 0, at) + 1 : len(content) if end < 0 else end])
    except (OSError, ValueError):  # absent or empty
        return None


def _event(line: bytes) -> dict[str, object] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


# The bridge between events with names and details, as written so far, and the structs of `core/events.py`. On disk the
# old form stays until every reader understands the structs; then this module goes.


OLD_NAMES: dict[str, type[typed.Event]] = {
    "run": typed.RunOpened,
    "working": typed.Working,
    "note": typed.Noted,
    "surveyed": typed.Surveyed,
    "model": typed.ModelFound,
    "looked": typed.MachineProbed,
    "finding": typed.FindingReported,
    "prepared": typed.DataPrepared,
    "planned": typed.Planned,
    "proof": typed.ProofReported,
    "forecast": typed.ForecastMade,
    "report": typed.ReportWritten,
    "attempt": typed.AttemptStarted,
    "remembered": typed.SettingsRemembered,
    "phase": typed.PhaseChanged,
    "progress": typed.Progressed,
    "turn": typed.Ticked,
    "quiet": typed.Quiet,
    "hang": typed.HangFound,
    "died": typed.ChildDied,
    "diagnosis": typed.Diagnosed,
    "ended": typed.AttemptEnded,
    "decision": typed.Decided,
    "disk full": typed.DiskFull,
    "leftovers ended": typed.ProcessesEnded,
    "left behind": typed.ProcessesLeft,
    "stopping": typed.StopStarted,
    "failed": typed.RunFailed,
    "storage": typed.StorageTrouble,
    "leader gone": typed.LeaderLost,
    "rank": typed.RankStarted,
    "rank ended": typed.RankEnded,
    "met": typed.RanksConnected,
    "training": typed.TrainingStarted,
    "epoch": typed.EpochStarted,
    "step": typed.StepDone,
    "evaluated": typed.Evaluated,
    "samples": typed.Sampled,
    "log": typed.Logged,
    "saving": typed.CheckpointStarted,
    "saved": typed.CheckpointSaved,
    "save failed": typed.CheckpointFailed,
    "save skipped": typed.CheckpointSkipped,
    "skipped checkpoint": typed.CheckpointRejected,
    "checkpoint damaged": typed.CheckpointRejected,
    "saving is dear": typed.CheckpointOverBudget,
    "best checkpoint is missing": typed.BestCheckpointMissing,
    "resumed": typed.Resumed,
    "from the beginning": typed.StartedOver,
    "starting over": typed.StartedOver,
    "bad numbers": typed.BadNumbersFound,
    "weights": typed.WeightsChecked,
    "stopped": typed.TrainingStopped,  # of the child; the supervisor's own says an exit code
    "finished": typed.TrainingFinished,
    "trained": typed.ScriptTrained,
    "candidate": typed.CandidateTimed,
    "uses": typed.PartUsed,
    "applied": typed.ChangeApplied,
    "refused": typed.ChangeRefused,
    "preload failed": typed.HookFailed,
    "cannot watch": typed.NotObserved,
    "program ended": typed.ProgramEnded,
    "exit handlers ended": typed.ExitHandlersEnded,
    "orphaned": typed.Orphaned,
    "sample": typed.TreeSampled,
}
_RENAMED: dict[type[typed.Event], dict[str, str]] = {  # new field: old
    typed.AttemptStarted: {"remedy": "rung", "reason": "because"},
    typed.Decided: {"remedy": "rung", "reason": "because"},
    typed.AttemptEnded: {"cause": "sentence"},
    typed.Quiet: {"activity": "words"},
    typed.Progressed: {"activity": "words"},
    typed.TreeSampled: {"activity": "words"},
    typed.Noted: {"text": "words"},
    typed.Working: {"total": "whole"},
    typed.StorageTrouble: {"error": "words"},
    typed.LeaderLost: {"leader": "words"},
    typed.SettingsRemembered: {"command": "words"},
}


def from_old(name: str, details: Mapping[str, Any]) -> typed.Event | None:
    """The struct of an event in the old form; None for one that has none, or whose fields do not fit."""
    kind, fields = OLD_NAMES.get(name), dict(details)
    if name in ("finished", "stopped") and "exit_code" in fields:
        kind = typed.RunFinished if name == "finished" else typed.RunStopped
    if name == "phase" and "step" not in fields:
        kind, fields = typed.StageStarted, {**fields, "stage": _STAGES.get(fields["phase"], fields["phase"])}
    if kind is None:
        return None
    if name == "checkpoint damaged":
        fields |= {"path": fields.get("folder", ""), "is_damaged": True}
    if kind is typed.CheckpointFailed and "error" in fields:
        fields["reason"] = fields.pop("error")
    if kind is typed.Logged:
        kept = ("time", "pid", "step", "train")
        fields = {
            **{key: fields[key] for key in kept if key in fields},
            "values": {key: value for key, value in fields.items() if key not in kept},
        }
    if kind is typed.EpochStarted:
        kept = ("time", "pid", "step", "epoch")
        fields = {
            **{key: fields[key] for key in kept if key in fields},
            "made": {key: value for key, value in fields.items() if key not in kept},
        }
    if kind is typed.CandidateTimed:
        kept = ("time", "pid", "number", "candidate", "error")
        fields = {
            **{key: fields[key] for key in kept if key in fields},
            "result": {key: value for key, value in fields.items() if key not in kept},
        }
    if kind is typed.ProofReported and "check" not in fields:
        fields = {**fields, "check": "skipped", "facts": {"words": fields.get("words")}}
    fields = {new: fields[old] for new, old in _RENAMED.get(kind, {}).items() if old in fields} | fields
    try:
        return msgspec.convert(to_plain(fields), kind)
    except msgspec.ValidationError:
        return None


def as_old(event: typed.Event) -> tuple[str, dict[str, Any]]:
    """The name and the details of a struct in the old form."""
    kind = type(event)
    if isinstance(event, typed.UnknownEvent):
        return event.was, {"time": event.time, **event.fields}
    fields = msgspec.structs.asdict(event)
    if event.pid is None:
        del fields["pid"]
    names = {kind: name for name, kind in OLD_NAMES.items()}
    own = {typed.RunFinished: "finished", typed.RunStopped: "stopped", typed.StageStarted: "phase"}
    own |= {typed.StartedOver: "from the beginning", typed.CheckpointRejected: "skipped checkpoint"}
    name = own.get(kind) or names.get(kind) or kind.event_name()
    for new, old in _RENAMED.get(kind, {}).items():
        fields[old] = fields[new]
    if isinstance(event, typed.StageStarted):
        fields |= {"phase": event.stage, "words": event.subject}
    elif isinstance(event, typed.CheckpointRejected):
        fields["folder"] = event.path
        name = "checkpoint damaged" if event.is_damaged else name
    elif isinstance(event, typed.CheckpointFailed):
        fields["error"] = event.reason
    elif isinstance(event, typed.Logged):
        fields |= fields.pop("values")
    elif isinstance(event, typed.EpochStarted):
        fields |= fields.pop("made")
    elif isinstance(event, typed.CandidateTimed):
        fields |= fields.pop("result")
        if not event.error:
            del fields["error"]
    return name, fields


def as_old_line(event: typed.Event) -> bytes:
    """One line of a file of events, in the form that every reader still understands."""
    name, fields = as_old(event)
    plain = to_plain({"event": name, "time": fields.pop("time"), **_plain_structs(fields)})
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()


def _plain_structs(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: msgspec.to_builtins(value, enc_hook=str) if isinstance(value, msgspec.Struct) else value
        for name, value in fields.items()
    }


def untyped(hear: Callable[[typed.Event], None]) -> Callable[[str, Mapping[str, object]], None]:
    """Let a listener of structs hear events that are told by name and details."""

    def on_event(name: str, details: Mapping[str, object]) -> None:
        hear(from_old(name, details) or typed.UnknownEvent(was=name, fields=dict(details)))

    return on_event


def with_details(on_event: Callable[[str, Mapping[str, object]], None]) -> Callable[[typed.Event], None]:
    """Let a listener to names and details hear structs."""

    def hear(event: typed.Event) -> None:
        name, details = as_old(event)
        on_event(name, {key: value for key, value in details.items() if key != "time"})

    return hear


_STAGES = {"look": "machine"}
