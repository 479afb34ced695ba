"""Reads a run folder as one story, whatever of it is there: a finished run, a failed one, or one that still goes.

Reads: every file of the run folder that another part may have left. Leaves: nothing. A file that is missing, half or
strange is as if it were absent: a report of a broken run must not break too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from holdfast.core.artifacts import read_artifact
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import (
    DATASET,
    DECISION,
    DIAGNOSIS,
    DOCTOR,
    EVENTS,
    EVIDENCE,
    MACHINE,
    MANIFEST,
    METRICS,
    MISJUDGED,
    OUTCOME,
    OUTPUT,
    REQUEST,
    RESULT,
    RUNG,
    SAMPLES,
    SETTINGS,
    SUPERVISOR,
    model_folder,
)
from holdfast.logs.log_lines import clean_lines
from holdfast.runs.nodes import read_leader
from holdfast.runs.plan_view import plan_view
from holdfast.runs.run_path import require_run
from holdfast.supervisor.outcome import newest_beat

Json = dict[str, Any]

_TAIL_BYTES = 16_384


@dataclass(frozen=True)
class AttemptStory:
    """One attempt as its folder tells it."""

    folder: Path
    number: int
    is_live: bool = False  # somebody looks after it now and has not seen it end

    @cached_property
    def settings(self) -> Json:
        """What it was to do."""
        return read_artifact(self.folder / SETTINGS)

    @cached_property
    def events(self) -> list[Json]:
        """What it wrote down, in order."""
        return _events(self.folder / EVENTS)

    @cached_property
    def diagnosis(self) -> Json:
        """What was found to have ended it."""
        return read_artifact(self.folder / DIAGNOSIS)

    @cached_property
    def decision(self) -> Json:
        """What was done about it."""
        return read_artifact(self.folder / DECISION)

    @cached_property
    def outcome(self) -> Json:
        """How it went, as its supervisor wrote it down."""
        return read_artifact(self.folder / OUTCOME)

    @cached_property
    def rung(self) -> Json:
        """What it changed, and why."""
        return read_artifact(self.folder / RUNG)

    @cached_property
    def evidence(self) -> Json:
        """How it ended, and what was seen then."""
        return read_artifact(self.folder / EVIDENCE)

    @cached_property
    def samples(self) -> list[Json]:
        """Memory and verdicts over time."""
        return _events(self.folder / SAMPLES)

    @property
    def beat(self) -> tuple[str, int, int]:
        """Phase, step and steps, as the process last beat them."""
        return newest_beat(self.folder)

    def named(self, *names: str) -> list[Json]:
        """Its events of some names."""
        return [event for event in self.events if event.get("event") in names]

    def tail(self, lines: int = 30) -> str:
        """The last lines of what it printed."""
        try:
            with (self.folder / OUTPUT).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        # A progress bar draws over itself; only what stayed on screen is worth keeping.
        kept = [line for _, line in clean_lines(enumerate(text.replace("\r\n", "\n").split("\n"), start=1))]
        return "\n".join(kept[-lines:]).strip("\n")


@dataclass(frozen=True)
class Story:
    """A run as its folder tells it."""

    folder: Path
    request: Json = field(default_factory=dict)
    machine: Json = field(default_factory=dict)
    dataset: Json = field(default_factory=dict)
    plan: Json = field(default_factory=dict)
    doctor: Json = field(default_factory=dict)
    metrics: Json = field(default_factory=dict)
    misjudged: Json = field(default_factory=dict)
    result: Json = field(default_factory=dict)
    supervisor: Json = field(default_factory=dict)
    is_held: bool = False  # somebody looks after it now
    attempts: tuple[AttemptStory, ...] = ()

    @property
    def is_command(self) -> bool:
        """Whether someone else's command was supervised, not our own training."""
        return self.request.get("kind") == "command" or bool(self.request.get("command"))

    @cached_property
    def events(self) -> list[Json]:
        """What the supervisor wrote down."""
        return _events(self.folder / EVENTS)

    @cached_property
    def settings(self) -> Json:
        """The settings of the newest attempt that has any."""
        found = (attempt.settings for attempt in reversed(self.attempts))
        return next((settings for settings in found if settings.get("task")), self.plan.get("settings") or {})

    @property
    def task(self) -> str:
        """What was trained; empty for a command."""
        return str(self.settings.get("task") or self.dataset.get("task") or self.result.get("task") or "")

    @cached_property
    def manifest(self) -> Json:
        """Of the prepared data."""
        prepared = self.settings.get("prepared")
        return read_artifact(Path(prepared) / MANIFEST) if prepared else {}

    @cached_property
    def steps(self) -> dict[int, Json]:
        """What each step gave, counted from 1. One that a later attempt did again counts once."""
        found: dict[int, Json] = {}
        for attempt in self.attempts:
            for event in attempt.named("step", "log"):
                if isinstance(event.get("step"), int) and _is_number(event.get("loss")):
                    found[event["step"] + (event["event"] == "step")] = event
        return dict(sorted(found.items()))

    @cached_property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """The metrics of each evaluation, by how many steps were done."""
        found: dict[int, dict[str, float]] = {}
        for attempt in self.attempts:
            for event in attempt.named("evaluated", "log"):
                metrics = event.get("metrics") if event["event"] == "evaluated" else _of_log(event)
                if isinstance(metrics, Mapping) and isinstance(event.get("step"), int):
                    numbers = {str(name): float(value) for name, value in metrics.items() if _is_number(value)}
                    found[event["step"]] = found.get(event["step"], {}) | numbers
        return {step: metrics for step, metrics in sorted(found.items()) if metrics}

    @property
    def planned_steps(self) -> int | None:
        """How many steps the run has, where known."""
        training = [event for attempt in self.attempts for event in attempt.named("training", "finished")]
        return next((event["steps"] for event in reversed(training) if isinstance(event.get("steps"), int)), None)

    @property
    def has_model(self) -> bool:
        """Whether a finished model lies in the folder."""
        return any(model_folder(self.folder).rglob("*.safetensors")) if model_folder(self.folder).is_dir() else False


def read_story(run: Path) -> Story:
    """Read a run folder; an error when it is none."""
    require_run(run)
    is_held, supervisor = read_leader(run) is not None, read_artifact(run / SUPERVISOR)
    return Story(
        folder=run,
        request=read_artifact(run / REQUEST),
        machine=read_artifact(run / MACHINE),
        dataset=read_artifact(run / DATASET),
        plan=plan_view(run),
        doctor=read_artifact(run / DOCTOR),
        metrics=read_artifact(run / METRICS),
        misjudged=read_artifact(run / MISJUDGED),
        result=read_artifact(run / RESULT),
        supervisor=supervisor,
        is_held=is_held,
        attempts=tuple(_attempts(run, supervisor if is_held else None)),
    )


def _attempts(run: Path, supervisor: Json | None) -> Iterator[AttemptStory]:
    found = [path for path in (run / "attempts").glob("*") if path.is_dir() and path.name.isdecimal()]
    folders = sorted(found, key=lambda path: int(path.name))
    for folder in folders:
        is_open = folder == folders[-1] and not (folder / OUTCOME).exists()
        is_live = is_open and supervisor is not None and not _is_cut_off(folder, supervisor)
        yield AttemptStory(folder, int(folder.name), is_live)


def _is_cut_off(attempt: Path, supervisor: Json) -> bool:
    """True when it began under an earlier supervisor, which a new one writes down only once it has planned."""
    began, held_since = read_artifact(attempt / RUNG).get("started"), supervisor.get("started")
    return _is_number(began) and _is_number(held_since) and began < held_since


def _events(path: Path) -> list[Json]:
    try:
        return [event for event in read_events(path) if isinstance(event, dict)]
    except OSError:
        return []


def _of_log(event: Json) -> Json:
    """The metrics that HF's Trainer logs after an evaluation."""
    return {name.removeprefix("eval_"): value for name, value in event.items() if name.startswith("eval_")}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN differs from itself
