"""Follows the engine's own story of an attempt as it is written: loss, speed, metrics, saves, time left."""

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.runfolder import EVENTS, attempt_folder

_RECENT = 50
_SMOOTH = 0.9


@dataclass(slots=True)
class Followed:
    """What is known of a training in progress."""

    step: int = 0  # done
    first_step: int | None = None  # of this attempt; None until it trains
    steps: int = 0
    epoch_steps: int = 0
    loss: float | None = None  # smoothed
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_step: int = 0
    saved_step: int | None = None
    seconds_per_step: float | None = None
    evaluation_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)

    def seconds_left(self) -> float | None:
        """Steps and evaluations that are still to come."""
        if not self.seconds_per_step or self.step >= self.steps:
            return None  # what is left then is the last look at the model, and writing it
        left = self.steps - self.step
        evaluations = left // self.epoch_steps if self.epoch_steps else 0
        last_look = 2 * self.evaluation_seconds  # validation and test
        return left * self.seconds_per_step + evaluations * self.evaluation_seconds + last_look


class Follow:
    """Reads what the engine has written since the last look."""

    def __init__(self, run: Path):
        self._run = run
        self._path: Path | None = None
        self._offset, self._rest = 0, b""
        self._times: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        self._last_step_at = 0.0
        self.now = Followed()

    def attempt(self, number: int) -> None:
        """Follow this attempt from here on; what was learned before it stays."""
        self._path, self._offset, self._rest = attempt_folder(self._run, number) / EVENTS, 0, b""
        self._times.clear()
        self.now.first_step = None

    def look(self, step: int = 0) -> Followed:
        """Read on, and give what is known now; the beat's `step` is ahead where a full disk keeps the story from it."""
        for event in self._new_events():
            self._take(event)
        self.now.step = max(self.now.step, step)
        return self.now

    def _new_events(self) -> list[Mapping[str, Any]]:
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                block = file.read()
        except OSError:
            return []
        self._offset += len(block)
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        found: list[Mapping[str, Any]] = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                found.append(event)
        return found

    def _take(self, event: Mapping[str, Any]) -> None:
        now, at = self.now, float(event.get("time", time.time()))
        name = event.get("event")
        if name == "training":
            now.steps, now.epoch_steps = int(event["steps"]), int(event.get("epoch_steps", 0))
            now.step = now.first_step = int(event["first_step"])
        elif name == "step":
            now.step = int(event["step"]) + 1
            loss = event.get("loss")
            if isinstance(loss, (int, float)):
                now.loss = loss if now.loss is None else _SMOOTH * now.loss + (1 - _SMOOTH) * loss
                now.losses.append(now.loss)
            self._times.append((now.step, at))
            self._last_step_at = at
            self._measure()
        elif name == "evaluated":
            now.metrics = {key: value for key, value in event["metrics"].items() if isinstance(value, (int, float))}
            now.metrics_step = int(event["step"])
            if self._last_step_at:
                now.evaluation_seconds = max(0.0, at - self._last_step_at)
            self._times.clear()  # the pause is no step
        elif name == "saved":
            now.saved_step = int(event["step"])
        elif name == "resumed":
            now.step = int(event["step"])

    def _measure(self) -> None:
        if len(self._times) >= 2:
            (first, begun), (last, ended) = self._times[0], self._times[-1]
            if last > first and ended > begun:
                self.now.seconds_per_step = (ended - begun) / (last - first)
