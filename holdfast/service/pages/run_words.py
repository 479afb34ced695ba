"""A run in words: the stages it goes through, the sentence that says where it stands, and its story line by line."""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.text import human_bytes, human_seconds, plural
from holdfast.runs.story import Story
from holdfast.runs.wording import clean
from holdfast.service.jobs.models import Job, JobState

Json = Mapping[str, Any]

STAGES = ("Queue", "Data", "Plan", "Proof", "Training", "Model")
_STAGE_OF = {"model": 1, "survey": 1, "look": 2, "plan": 2, "prepare": 2, "prove": 3}


@dataclass(frozen=True, slots=True)
class Stage:
    """One station on the way to a model."""

    name: str
    look: str  # "done" | "skipped" | "now" | "next" | "paused" | "ended" | "todo"
    said: str  # for those who cannot see the look


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One thing that happened."""

    at: datetime.datetime
    words: str
    look: str = ""  # "good", "bad", "warn" or nothing


def stages_of(job: Job, events: Sequence[Json], proof: str) -> tuple[Stage, ...]:
    """Which stations lie behind, which one it is at; a proof is behind it only where one was made."""
    here = _stage(job, events)
    now = {"running": "now", "queued": "next" if here else "now", "planned": "next"}.get(
        job.state, "paused" if job.state == JobState.STOPPED else "ended"
    )
    said = {
        "done": "done",
        "now": "now",
        "next": "next",
        "ended": "failed here",
        "paused": "stopped here",
        "todo": "to come",
        "skipped": "skipped",
    }
    looks = ["done" if at < here else now if at == here else "todo" for at in range(len(STAGES))]
    if proof == "skipped" and here > STAGES.index("Proof"):
        looks[STAGES.index("Proof")] = "skipped"
    return tuple(Stage(name, look, said[look]) for name, look in zip(STAGES, looks, strict=True))


def newest_phase(events: Sequence[Json]) -> tuple[str, datetime.datetime | None]:
    """The phase it is in, and since when; none between two attempts."""
    for event in reversed(events):
        if event.get("event") in ("attempt", "ended"):
            break
        if event.get("event") == "phase":
            return str(event.get("phase") or ""), moment(event.get("time"))
    return "", None


def run_seconds(job: Job, story: Story) -> float | None:
    """How long a run that has ended took: what its own result says, as its report does; else by its row."""
    if job.state in (JobState.QUEUED, JobState.RUNNING):
        return None
    said = story.result.get("seconds")
    if isinstance(said, int | float) and not isinstance(said, bool) and 0 < said < math.inf:
        return float(said)
    if job.started and job.ended and job.ended > job.started:
        return (job.ended - job.started).total_seconds()
    return None


def steps_of(job: Job, story: Story) -> tuple[int, int]:
    """How far it is, and of how many steps: by its newest beat, or by its row."""
    _, step, steps = story.attempts[-1].beat if story.attempts else ("", 0, 0)
    step, steps = (step, steps) if steps else (job.step, job.steps)
    return max(0, step), max(step, steps, 0)


def story_lines(events: Sequence[Json]) -> tuple[StoryLine, ...]:
    """What happened so far, for people; the newest last."""
    found = []
    for event in events:
        show, at = _SHOWN.get(str(event.get("event"))), moment(event.get("time"))
        if show and at:
            try:
                words, look = show(event)
            except (TypeError, ValueError, AttributeError, KeyError):
                continue
            if words:
                found.append(StoryLine(at, words, look))
    return tuple(found)


def moment(seconds: object) -> datetime.datetime | None:
    """A moment from seconds since 1970; None for anything else."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _stage(job: Job, events: Sequence[Json]) -> int:
    if job.state == JobState.FINISHED:
        return len(STAGES)
    if job.state == JobState.PLANNED:
        return 4
    for event in reversed(events):
        name, phase = event.get("event"), event.get("phase")
        if name in ("attempt", "ended", "decision") or (name == "phase" and phase not in _STAGE_OF):
            return 4
        if name == "phase":
            return _STAGE_OF[str(phase)]
    return 0 if job.state in (JobState.QUEUED, JobState.STOPPED) else 1


def _surveyed(event: Json) -> tuple[str, str]:
    splits = ", ".join(f"{count:,} {name}" for name, count in (event.get("splits") or {}).items())
    return f"read {event['rows']:,} rows for {event.get('task')}" + (f": {splits}" if splits else ""), "good"


def _model(event: Json) -> tuple[str, str]:
    return f"starts from {event.get('name')}, {event['parameters']:,} weights", "good"


def _looked(event: Json) -> tuple[str, str]:
    gpus = event.get("gpus") or []
    found = ", ".join(str(gpu.get("name") if isinstance(gpu, dict) else gpu) for gpu in gpus) or "no GPU"
    return f"{plural(event['cpu_count'], 'core')}, {human_bytes(event['memory_bytes'])} of memory, {found}", "good"


def _proof(event: Json) -> tuple[str, str]:
    looks = {"done": "good", "failed": "bad"}
    return f"proof: {clean(event.get('words') or event.get('state'))}", looks.get(str(event.get("state")), "")


def _attempt(event: Json) -> tuple[str, str]:
    number, rung = event["number"], event.get("rung")
    if rung:
        return f"attempt {number}: {clean(rung)} ({clean(event.get('because'))})", ""
    return (f"attempt {number}, the same plan again: {clean(event.get('because'))}" if number > 1 else "attempt 1"), ""


def _quiet(event: Json) -> tuple[str, str]:
    words = f": {clean(event['words'])}" if event.get("words") else ""
    return f"no progress for {human_seconds(float(event['seconds']))} in phase {event.get('phase')}{words}", "warn"


def _ended(event: Json) -> tuple[str, str]:
    if event.get("outcome") in ("finished", "stopped"):
        return f"attempt {event['number']} {event['outcome']}", "good" if event["outcome"] == "finished" else "warn"
    noticed = event.get("noticed_after_seconds")
    seen = f", noticed after {human_seconds(float(noticed))}" if noticed is not None else ""
    return f"attempt {event['number']} failed{seen}: {clean(event.get('sentence'))}", "bad"


def _said(look: str) -> Callable[[Json], tuple[str, str]]:
    return lambda event: (clean(event.get("sentence") or event.get("words") or ""), look)


_SHOWN: dict[str, Callable[[Json], tuple[str, str]]] = {
    "surveyed": _surveyed,
    "model": _model,
    "looked": _looked,
    "prepared": lambda event: (f"texts turned into tokens in {human_seconds(float(event['seconds']))}", "good"),
    "planned": lambda event: ("the plan is made", "good"),
    "proof": _proof,
    "attempt": _attempt,
    "resumed": lambda event: (f"goes on from step {event['step']:,}", "good"),
    "quiet": _quiet,
    "ended": _ended,
    "stopping": lambda event: ("asked to save and end", "warn"),
    "finished": _said("good"),
    "failed": _said("bad"),
    "stopped": _said("warn"),
    "note": _said(""),
}
