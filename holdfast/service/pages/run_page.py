"""The page of a run, built from its row and its `RunState`, whatever state they are in.

A part that cannot be drawn says so in its place and never hides the others.
"""

import datetime
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import TypeVar

from django.utils.safestring import SafeString, mark_safe

from holdfast.core import events as ev
from holdfast.core.records import Forecast, Proof, RunPlan, SkippedProof, read_record
from holdfast.core.runfolder import REPORT, STACKS
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.event_wording import event_lines
from holdfast.runs.observation_wording import activity_text
from holdfast.runs.proof_wording import forecast_basis
from holdfast.runs.report.html import Html, tag
from holdfast.runs.report.learning_section import loss_chart, memory_chart, metric_chart, rate_chart
from holdfast.runs.report.plan_section import forecast_section, machine_section, plan_section
from holdfast.runs.report.result_section import metrics_table, mistakes_section, result_section
from holdfast.runs.state import AttemptState, RunState
from holdfast.runs.wording import (
    Line,
    attempt_facts,
    attempt_text,
    cause_label,
    cause_text,
    decision_text,
    figures,
    proof_lines,
    sentence,
)
from holdfast.service.jobs.evidence_files import evidence_names
from holdfast.service.jobs.job_state import fingerprint, read_job
from holdfast.service.jobs.job_wording import Look, job_badge, job_headline
from holdfast.service.jobs.models import Job, JobState
from holdfast.service.jobs.secrets import without_places, without_secrets
from holdfast.service.jobs.shown_errors import ShownError, kept_page_error

STATIONS = ("Queue", "Preparation", "Plan", "Proof", "Training", "Model")
_STATION_OF = {"detect": 1, "model": 1, "prepare": 1, "machine": 2, "plan": 2, "prove": 3}
_STATION_WORDS = {
    "done": "done",
    "now": "now",
    "next": "next",
    "ended": "failed here",
    "paused": "stopped here",
    "todo": "to come",
    "skipped": "skipped",
}
_LOOKS: dict[str, Look] = {"ok": "good", "!": "warn", "x": "bad"}
_LIVE = (JobState.QUEUED, JobState.RUNNING)
_FOLDERLESS = (*_LIVE, JobState.STOPPED)  # a run in these states may not have a folder yet
_LOG_LINES, _TAIL_LINES, _SHOWN_ATTEMPTS, _STACK_BYTES = 60, 40, 20, 12_000
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Station:
    """One station on the way to a model."""

    name: str
    look: str  # "done" | "skipped" | "now" | "next" | "paused" | "ended" | "todo"
    text: str  # for those who cannot see the look


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One thing that happened."""

    at: datetime.datetime
    text: str
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One attempt: how it went, its cause with the proof, what was done about it, and the evidence."""

    attempt: AttemptState
    text: str
    began: datetime.datetime | None
    facts: tuple[str, ...]
    cause: str
    cause_label: str
    proof: tuple[str, ...]
    decision: str
    remedies: tuple[str, ...]
    files: tuple[str, ...]
    stack: str  # text of the first stack file
    memory: SafeString  # a chart
    tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Everything the page of a run says."""

    job: Job
    badge: str
    headline: str
    look: Look
    is_live: bool
    is_planned: bool
    stations: tuple[Station, ...]
    step: int
    steps: int
    left: str
    doing: str
    figures: tuple[Figure, ...]
    error: ShownError | None  # why the request was refused
    findings: tuple[ev.FindingReported, ...]
    forecast: tuple[Figure, ...]
    forecast_text: str
    parts: dict[str, SafeString]  # drawn ones, by name; empty where there is nothing to draw
    attempts: tuple[AttemptView, ...]
    history: tuple[HistoryLine, ...]
    log: str
    has_report: bool
    has_model: bool
    model_id: int | None
    is_folder_missing: bool


def read_run_page(job: Job) -> RunPage:
    """Read a run as it is now."""
    found = read_job(job)
    state = found or RunState(folder=job.folder)
    headline, look = job_headline(job, found)
    is_running = job.state == JobState.RUNNING
    left = state.seconds_left if is_running else None
    activity = state.attempt.activity if state.is_training and state.attempt else None
    model = getattr(job, "trained_model", None)
    return RunPage(
        job=job,
        badge=job_badge(job, found),
        headline=without_secrets(headline),
        look=look,
        is_live=job.state in _LIVE,
        is_planned=job.state == JobState.PLANNED,
        stations=_stations(job, state),
        step=state.step or job.step,
        steps=state.steps or job.steps,
        left=human_seconds(left) if left else "",
        doing=without_secrets(activity_text(activity)) if activity else "",
        figures=tuple(starmap(Figure, figures(state))),
        error=kept_page_error(job.error),
        findings=tuple(one for one in _named(state, ev.FindingReported) if one.severity != "note"),
        forecast=tuple(_forecast(job.folder)),
        forecast_text=_forecast_text(job.folder),
        parts={name: _drawn(name, draw, state) for name, draw in _PARTS.items()},
        attempts=tuple(_attempt_view(state, one) for one in reversed(state.attempts[-_SHOWN_ATTEMPTS:])),
        history=tuple(_history(state)),
        log=without_secrets(state.attempt.tail(_LOG_LINES)) if state.attempt else "",
        has_report=(job.folder / REPORT).is_file(),
        has_model=job.state == JobState.FINISHED and state.has_model,
        model_id=model.pk if model else None,
        is_folder_missing=found is None and not job.error and (bool(job.attempts) or job.state not in _FOLDERLESS),
    )


def page_fingerprint(job: Job) -> tuple[object, ...]:
    """What the page is made of, cheaply: it is drawn again only when this changes."""
    row = (job.state, job.goal, job.stop_asked, job.worker_id, job.phase, job.step, job.steps, job.loss, job.sentence)
    rest = (job.silent_since, job.eta_seconds, job.attempts, job.claims, str(job.error), str(job.metrics))
    return (*row, *rest, fingerprint(job.folder))


def run_seconds(job: Job, state: RunState) -> float | None:
    """How long the attempts of a run that has ended took."""
    if job.state in _LIVE or not state.attempts:
        return None
    return state.seconds or None


def _stations(job: Job, state: RunState) -> tuple[Station, ...]:
    """Which stations are done and where the run is; a proof that was skipped is not done."""
    here = _station(job, state)
    now = {"running": "now", "queued": "next" if here else "now", "planned": "next", "stopped": "paused"}
    looks = [
        "done" if at < here else now.get(job.state, "ended") if at == here else "todo" for at in range(len(STATIONS))
    ]
    proof = STATIONS.index("Proof")
    if here > proof and any(isinstance(one.result, SkippedProof) for one in _named(state, ev.ProofReported)):
        looks[proof] = "skipped"
    return tuple(Station(name, look, _STATION_WORDS[look]) for name, look in zip(STATIONS, looks, strict=True))


def _station(job: Job, state: RunState) -> int:
    if job.state == JobState.FINISHED:
        return len(STATIONS)
    if job.state == JobState.PLANNED or state.attempts:
        return STATIONS.index("Training")
    if state.stage:
        return _STATION_OF[state.stage]
    return 0 if job.state in (JobState.QUEUED, JobState.STOPPED) else 1


def _forecast(run: Path) -> Iterator[Figure]:
    plan, forecast = read_record(run, RunPlan), read_record(run, Forecast)
    if forecast and forecast.seconds:
        yield Figure("training time, forecast", human_seconds(forecast.seconds))
    elif forecast and forecast.rough_seconds:
        yield Figure("training time, rough estimate", f"~ {human_seconds(forecast.rough_seconds)}")
    if forecast and forecast.peak_bytes:
        free = plan.memory.free_bytes if plan else None
        of = f", of {human_bytes(free)} free" if free else ""
        yield Figure(f"peak memory{of}", human_bytes(forecast.peak_bytes))
    if plan is None:
        return
    steps = plan.settings.max_steps
    yield Figure("steps", f"{steps:,}") if steps else Figure("epochs", str(plan.settings.epochs))
    yield Figure("examples per step", str(plan.settings.batch_size))
    yield Figure("device", plan.settings.device)


def _forecast_text(run: Path) -> str:
    """What the forecast is based on; if there is none, why."""
    forecast, proof = read_record(run, Forecast), read_record(run, Proof)
    if forecast and forecast.seconds:
        return sentence(f"forecast: {forecast_basis(forecast)}")
    later = "It is measured after the first few steps of training."
    if forecast and forecast.rough_seconds:
        return f"The time is {forecast_basis(forecast)}; it may be off by a factor of three. {later}"
    why = "the proof was skipped, so no step was timed" if proof and proof.state == "skipped" else "no step was timed"
    return f"No forecast of the time: {why}. {later}"


def _attempt_view(state: RunState, attempt: AttemptState) -> AttemptView:
    files = tuple(evidence_names(state.folder, attempt.number))
    stacks = [name for name in files if name.startswith(f"{STACKS}/")]
    diagnosis, is_failed = attempt.diagnosis, attempt.is_failed
    return AttemptView(
        attempt=attempt,
        text=attempt_text(attempt),
        began=_moment(attempt.started),
        facts=tuple(attempt_facts(attempt)),
        cause=without_secrets(cause_text(attempt)),
        cause_label=cause_label(attempt),
        proof=tuple(without_secrets(text)[:1000] for text in proof_lines(attempt)),
        decision=decision_text(attempt.decision) if attempt.decision and is_failed else "",
        remedies=tuple(
            one.title + (f": {one.command}" if one.command else "") + (f" (cost: {one.cost})" if one.cost else "")
            for one in (diagnosis.remedies if diagnosis and is_failed else ())
        ),
        files=files,
        stack=_stack(attempt.folder / stacks[0]) if stacks and is_failed else "",
        memory=_drawn("memory", lambda run: memory_chart(run, attempt.number), state) if is_failed else SafeString(),
        tail=without_secrets(attempt.tail(_TAIL_LINES)) if is_failed else "",
    )


def _history(state: RunState) -> Iterator[HistoryLine]:
    """What happened so far, the newest last."""
    for event in state.history:
        if at := _moment(event.time):
            for line in event_lines(event):
                if not line.is_detail:
                    yield HistoryLine(at, without_secrets(_named_line(line)), _LOOKS.get(line.mark, ""))


def _named_line(line: Line) -> str:
    return f"{line.name}: {line.text}" if line.name else line.text


def _named(state: RunState, kind: type[T]) -> Iterator[T]:
    return (event for event in state.history if isinstance(event, kind))


def _moment(seconds: float | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC) if seconds else None
    except (OverflowError, ValueError, OSError):
        return None


def _stack(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return without_secrets(file.read(_STACK_BYTES).decode(errors="replace"))
    except OSError:
        return ""


_PARTS: dict[str, Callable[[RunState], Html]] = {
    "loss": loss_chart,
    "metric": metric_chart,
    "rate": rate_chart,
    "memory": memory_chart,
    "metrics": metrics_table,
    "result": result_section,
    "mistakes": mistakes_section,
    "plan": plan_section,
    "forecast": forecast_section,
    "machine": machine_section,
}


def _drawn(name: str, draw: Callable[[RunState], Html], state: RunState) -> SafeString:
    try:
        return mark_safe(without_places(draw(state)))  # built by `tag`, which escapes
    except Exception:  # whatever a damaged folder holds, the other parts are still worth reading
        _log.warning("the %s of %s cannot be drawn", name, state.folder, exc_info=True)
        return mark_safe(tag("p", f"This part ({name}) cannot be drawn from the run folder.", class_="meta"))
