"""What the page of a run shows, read from its row and its folder, whatever state they are in.

Reads: the row, the run folder. A part that cannot be drawn says so in its place and never hides the others.
"""

import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from django.utils.safestring import SafeString, mark_safe

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import EVENTS, REPORT
from holdfast.core.text import human_bytes, human_seconds, plural
from holdfast.runs.report.html import Html, tag
from holdfast.runs.report.learning_section import loss_chart, memory_chart, metric_chart, rate_chart
from holdfast.runs.report.plan_section import forecast_section, machine_section, plan_section
from holdfast.runs.report.result_section import metrics_table, mistakes_section, result_section
from holdfast.runs.state import RunReader, RunState
from holdfast.runs.story import Story
from holdfast.runs.wording import headline
from holdfast.service.jobs.followed import follow_events, follow_story, marks_of
from holdfast.service.jobs.models import Job, JobGoal, JobState
from holdfast.service.jobs.secrets import without_places, without_secrets
from holdfast.service.jobs.shown_errors import ShownError, kept_page_error
from holdfast.service.pages.phases import phase_words
from holdfast.service.pages.run_attempts import AttemptSight, attempts_of
from holdfast.service.pages.run_rows import score_words, state_words
from holdfast.service.pages.run_words import (
    Stage,
    StoryLine,
    newest_phase,
    run_seconds,
    stages_of,
    steps_of,
    story_lines,
)

_LOG_LINES = 60
_LIVE = (JobState.QUEUED, JobState.RUNNING)
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with its name."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """What doctor found on the machine that will train."""

    severity: str
    title: str
    seen: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSight:
    """Everything the page of a run says."""

    job: Job
    words: str
    sentence: str
    look: str  # of the sentence: "good", "bad", "warn" or nothing
    is_live: bool
    is_planned: bool
    stages: tuple[Stage, ...]
    step: int
    steps: int
    left: str
    doing: str
    phase_since: datetime.datetime | None
    figures: tuple[Figure, ...]
    problem: ShownError | None  # why the request was refused
    findings: tuple[PlanFinding, ...]
    forecast: tuple[Figure, ...]
    forecast_words: str
    parts: dict[str, SafeString]  # drawn ones, by name; empty where there is nothing to draw
    attempts: tuple[AttemptSight, ...]
    story: tuple[StoryLine, ...]
    log: str
    has_report: bool
    has_model: bool
    model_id: int | None
    folder_words: str  # what is wrong with the folder, if anything


def read_sight(job: Job) -> RunSight:
    """Look at a run now."""
    folder_words = ""
    try:
        story = follow_story(job.folder)
    except (RequestError, OSError, ValueError) as error:
        story = Story(folder=job.folder)
        if job.attempts or (job.state not in (*_LIVE, JobState.STOPPED) and not job.error):
            folder_words = f"Its folder cannot be read: {getattr(error, 'seen', '') or error}"
    events = follow_events(job.folder / EVENTS)
    phase, since = newest_phase(events)
    if since and job.started and since < job.started:  # of an earlier claim
        phase, since = job.phase, None
    step, steps = steps_of(job, story)
    is_running = job.state == JobState.RUNNING
    samples = story.attempts[-1].samples if story.attempts else []
    last = samples[-1] if samples and is_running else {}
    sentence, look = _sentence(job, story, phase)
    attempts = _safely(lambda: attempts_of(story, is_running=is_running), "attempts") or ()
    model = getattr(job, "trained_model", None)
    state = _state(job)
    return RunSight(
        job=job,
        words=state_words(job, phase),
        sentence=without_secrets(sentence),
        look=look,
        is_live=job.state in _LIVE,
        is_planned=job.state == JobState.PLANNED,
        stages=stages_of(job, events, _proof_state(story)),
        step=step,
        steps=steps,
        left=human_seconds(job.eta_seconds) if is_running and job.eta_seconds else "",
        doing=str(last.get("words") or "") if is_running else "",
        phase_since=since if is_running else None,
        figures=tuple(_figures(job, story, step, steps, last.get("resident_bytes"))),
        problem=kept_page_error(job.error),
        findings=_safely(lambda: _findings(story), "findings") or (),
        forecast=_safely(lambda: _forecast(story), "forecast") or (),
        forecast_words=_safely(lambda: _forecast_words(story), "forecast") or "",
        parts={name: _drawn(name, draw, state) for name, draw in _PARTS.items()},
        attempts=attempts,
        story=story_lines(events),
        log=_safely(lambda: _log_text(story), "log") or "",
        has_report=(job.folder / REPORT).is_file(),
        has_model=job.state == JobState.FINISHED and _safely(lambda: story.has_model, "model") is True,
        model_id=model.pk if model else None,
        folder_words=folder_words,
    )


def seen_of(job: Job) -> tuple[object, ...]:
    """What the page is made of, cheaply: it is drawn again only when this changes."""
    row = (job.state, job.goal, job.stop_asked, job.worker_id, job.phase, job.step, job.steps, job.loss, job.sentence)
    return (
        *row,
        job.silent_since,
        job.eta_seconds,
        job.attempts,
        job.claims,
        str(job.error),
        str(job.metrics),
        marks_of(job.folder),
    )


def _sentence(job: Job, story: Story, phase: str) -> tuple[str, str]:
    """Where it stands in a sentence; it changes only when something happened, for those who hear it."""
    where = f" on {job.worker}" if job.worker else ""
    if job.state == JobState.QUEUED:
        until = "to plan it" if job.goal == JobGoal.PLAN else "to train it"
        need = f" with {job.device}" if job.device else ""
        return f"Waits for a free machine{need} {until}.", ""
    if job.state == JobState.RUNNING:
        if job.stop_asked:
            return f"Was asked to stop{where}: it saves and ends.", "warn"
        if since := job.silent_since:
            whose = f" from {job.worker}" if job.worker else ""
            goes_on = "if none comes, the run goes on from what it saved last"
            return f"No word{whose} since {since:%H:%M:%S} UTC; {goes_on}.", "warn"
        number = len(story.attempts)
        attempt = f", attempt {number}" if number > 1 else ""
        return f"It {phase_words(phase)}{where}{attempt}.", ""
    if job.state == JobState.PLANNED:
        return "The plan is ready. Start the training, or change the settings first.", "good"
    if job.error:  # what is wrong with it stands below, with what to do
        return "It cannot be done as it was asked for.", "bad"
    said = job.sentence or str(story.result.get("sentence") or "")
    if job.state == JobState.FINISHED:
        told = _safely(lambda: headline(_state(job)), "sentence") if story.result.get("state") == "finished" else None
        return told or _capital(said or "finished, but its result cannot be read"), "good"
    if job.state == JobState.STOPPED:
        reached = f" at step {job.step:,} of {job.steps:,}" if job.steps else ""
        return f"Stopped{reached}. What was done is saved; it can go on from there.", "warn"
    return _capital(said or "it failed, and left no word about why"), "bad"


def _figures(job: Job, story: Story, step: int, steps: int, resident: object) -> list[Figure]:
    found = []
    score = score_words(job.metrics) or score_words(story.metrics)
    if score:
        value, _, name = score.rpartition(" % ") if " % " in score else score.partition(" ")
        found.append(Figure(name, f"{value} %" if " % " in score else value))
    if step:
        found.append(Figure(f"of {steps:,} steps", f"{step:,}"))
    losses = list(story.steps.values())[-1:]
    loss = losses[0]["loss"] if losses else job.loss
    if isinstance(loss, int | float):
        found.append(Figure("loss", f"{loss:.4g}"))
    if isinstance(resident, int | float) and resident > 0:
        found.append(Figure("memory", human_bytes(resident)))
    if lasted := run_seconds(job, story):
        found.append(Figure("of training", human_seconds(lasted)))
    if len(story.attempts) > 1:
        found.append(Figure(plural(len(story.attempts), "attempt").split(" ", 1)[1], str(len(story.attempts))))
    return found


def _findings(story: Story) -> tuple[PlanFinding, ...]:
    return tuple(
        PlanFinding(
            str(one.get("severity") or ""),
            str(one.get("title") or one.get("slug") or ""),
            str(one.get("seen") or ""),
            tuple(
                str(remedy.get("title")) + (f": {remedy['command']}" if remedy.get("command") else "")
                for remedy in one.get("remedies") or ()
                if isinstance(remedy, dict)
            ),
        )
        for one in story.doctor.get("findings") or ()
        if isinstance(one, dict) and one.get("severity") in ("blocker", "warning")
    )


def _forecast(story: Story) -> tuple[Figure, ...]:
    forecast = story.plan.get("forecast") or {}
    found = []
    if isinstance(forecast.get("seconds"), int | float):
        found.append(Figure("of training, forecast", human_seconds(forecast["seconds"])))
    elif isinstance(forecast.get("rough_seconds"), int | float):
        found.append(Figure("of training, a rough guess", f"~ {human_seconds(forecast['rough_seconds'])}"))
    if isinstance(forecast.get("peak_bytes"), int | float):
        free = (story.plan.get("memory") or {}).get("free_bytes")
        of = f" of {human_bytes(free)} free" if isinstance(free, int | float) else ""
        found.append(Figure(f"of memory at the most{of}", human_bytes(forecast["peak_bytes"])))
    choices = story.plan.get("choices") or {}
    chosen = {name: one.get("value") for name, one in choices.items() if isinstance(one, dict)}
    until = "max_steps" if chosen.get("max_steps") else "epochs"  # whatever the epochs, the steps end it
    for name, words in ((until, _UNTIL[until]), ("batch_size", "examples a step"), ("device", "device")):
        if chosen.get(name) is not None:
            found.append(Figure(words, str(chosen[name])))
    return tuple(found)


def _forecast_words(story: Story) -> str:
    """What the forecast rests on; where there is none, why."""
    forecast = story.plan.get("forecast") or {}
    if isinstance(forecast.get("seconds"), int | float):
        return _capital(f"forecast: {forecast.get('because') or 'measured on this machine'}")
    if isinstance(forecast.get("rough_seconds"), int | float):
        because = forecast.get("because") or "reckoned from the model's size; nothing was measured yet"
        return f"The time is {because}. It may be off threefold; a few steps into the training it is measured."
    why = {"skipped": "the proof was skipped, so no step was timed"}.get(_proof_state(story), "no step was timed")
    return f"There is no forecast of the time: {why}. It comes a few steps into the training."


def _proof_state(story: Story) -> str:
    proof = story.plan.get("proof")
    return str(proof.get("state") or "") if isinstance(proof, dict) else ""


def _log_text(story: Story) -> str:
    return without_secrets(story.attempts[-1].tail(_LOG_LINES)) if story.attempts else ""


def _capital(words: str) -> str:
    return words[0].upper() + words[1:].rstrip(".") + "." if words else ""


_UNTIL = {"max_steps": "steps, as asked", "epochs": "epochs"}
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


def _state(job: Job) -> RunState:
    return RunReader(job.folder).read(is_supervised=job.state == JobState.RUNNING)


def _drawn(name: str, draw: Callable[[RunState], Html], story: RunState) -> SafeString:
    try:
        return mark_safe(without_places(draw(story)))
    except Exception:  # whatever a broken folder holds, the other parts are still worth reading
        _log.warning("the %s of %s cannot be drawn", name, story.folder, exc_info=True)
        return mark_safe(tag("p", f"This part ({name}) cannot be drawn from what the folder holds.", class_="meta"))


def _safely(read: Callable[[], T], what: str) -> T | None:
    try:
        return read()
    except Exception:
        _log.warning("%s of a run cannot be read", what, exc_info=True)
        return None
