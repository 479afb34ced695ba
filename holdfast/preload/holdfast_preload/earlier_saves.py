"""The checkpoints of this run's earlier attempts: by which training of the script, and which hold bad numbers.

A script may train several times (folds, stages) into one folder. Each call of `train()` or `fit()` has a number,
counted from 1, and continues only from checkpoints of the call with the same number.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Iterator

from holdfast_preload import event_writer
from holdfast_preload.checkpoint_files import numbered

Event = dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A checkpoint an earlier attempt began to write."""

    step: int
    path: str
    time: float


def earlier_events(attempt: str) -> list[Event]:
    """Every event of this run's attempts before this one, in order."""
    attempts = os.path.dirname(os.path.abspath(attempt))
    own = os.path.basename(os.path.abspath(attempt))
    try:
        numbers = {int(name): name for name in os.listdir(attempts) if name.isdigit()}
        names = [numbers[number] for number in sorted(numbers) if number < int(own)]  # as text, "100" is before "11"
    except (OSError, ValueError):
        return []
    return [event for name in names for event in _read(os.path.join(attempts, name, "events.jsonl"))]


def saved_by(train: int, events: list[Event]) -> list[Saved]:
    """Checkpoints of one training, the furthest first, without those written after its loss became NaN."""
    owners: dict[str, tuple[int, Saved]] = {}
    for event in events:
        if event.get("event") == "checkpoint_started":
            saved = Saved(int(event["step"]), str(event["path"]), float(event["time"]))
            owners[saved.path] = (int(event["train"]), saved)
    found = [saved for number, saved in owners.values() if number == train]
    for event in events:
        if event.get("event") == "bad_numbers_found" and event.get("train") == train:
            good = int(event.get("last_finite_step") or 0)
            found = [saved for saved in found if saved.step <= good or saved.time > float(event["time"])]
    return sorted(found, key=lambda saved: (saved.step, saved.time), reverse=True)


def written_since_the_run_began(folder: str, attempt: str) -> list[Saved]:
    """Checkpoints by their time, for a library whose saves could not be watched."""
    first = os.path.join(os.path.dirname(os.path.abspath(attempt)), "01", "settings.json")
    try:
        began = os.path.getmtime(first)
    except OSError:
        return []
    found = [Saved(step, path, changed_at(path)) for step, path in numbered(folder)]
    return [saved for saved in found if saved.time >= began]


def report_skipped(path: str, reason: str) -> None:
    """Report that a checkpoint was skipped."""
    event_writer.write("checkpoint_rejected", path=path, reason=reason)


def changed_at(path: str) -> float:
    """When a file or folder was last written; 0 if it does not exist."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


def _read(path: str) -> Iterator[Event]:
    try:
        with open(path, "rb") as file:
            lines = file.readlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
