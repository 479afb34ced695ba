"""Runs side by side: the settings that differ, the metrics, the loss curves over each other, and the times."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString, mark_safe

from holdfast.core.errors import RequestError
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.report.headline import metric_name
from holdfast.runs.report.svg_charts import Chart, Series, line_chart, smoothed
from holdfast.runs.story import Story
from holdfast.service.jobs.compare import compare_runs
from holdfast.service.jobs.followed import follow_story
from holdfast.service.jobs.models import Job
from holdfast.service.jobs.shown_errors import label_of
from holdfast.service.pages.run_rows import state_words
from holdfast.service.pages.run_words import run_seconds, steps_of

_LOOKS = "abcdef"  # one for each
_SMOOTH_FROM = 12  # points


@dataclass(frozen=True, slots=True)
class CompareHead:
    """One run at the head of a column."""

    id: int
    name: str
    state: str
    words: str
    look: str


@dataclass(frozen=True, slots=True)
class CompareCell:
    """One value; the best of its row is marked."""

    run: str
    words: str
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class CompareRow:
    """One thing of all runs."""

    name: str
    cells: tuple[CompareCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage:
    """What the page shows."""

    runs: tuple[CompareHead, ...]
    settings: tuple[CompareRow, ...]
    metrics: tuple[CompareRow, ...]
    times: tuple[CompareRow, ...]
    chart: SafeString
    missing: int  # asked for, not to be seen
    ids: str


def compare(jobs: Sequence[Job], missing: int = 0) -> ComparePage:
    """Lay runs side by side."""
    stories = [_story(job) for job in jobs]
    beside = compare_runs(jobs)
    heads = tuple(
        CompareHead(job.pk, job.name, job.state, state_words(job), look)
        for job, look in zip(jobs, _LOOKS, strict=False)
    )
    return ComparePage(
        runs=heads,
        settings=tuple(_settings(jobs, beside["settings"])),
        metrics=tuple(_metrics(jobs, beside["metrics"])),
        times=tuple(_times(jobs, stories)),
        chart=mark_safe(_chart(jobs, stories)),  # built by `tag`, which escapes
        missing=missing,
        ids=",".join(str(job.pk) for job in jobs),
    )


def _story(job: Job) -> Story:
    try:
        return follow_story(job.folder)
    except (RequestError, OSError, ValueError):
        return Story(folder=job.folder)


def _settings(jobs: Sequence[Job], found: Mapping[str, Sequence[object]]) -> Iterator[CompareRow]:
    """What was asked or chosen differently; a run without a plan says nothing about what was not asked."""
    names = [job.dataset.name if job.dataset else "" for job in jobs]
    for name, values in found.items():
        known = {_plain(value) for value in values if value is not None}
        if name == "dataset":
            yield CompareRow(name, _cells(jobs, names))
        elif len(known) > 1 or any(name in job.request for job in jobs):
            yield CompareRow(label_of(name), _cells(jobs, ["" if one is None else _plain(one) for one in values]))


def _metrics(jobs: Sequence[Job], found: Mapping[str, Sequence[float | None]]) -> Iterator[CompareRow]:
    for name, values in found.items():
        split, _, metric = name.partition(" ")
        known = [value for value in values if value is not None]
        is_twice = metric == "micro_f1" and f"{split} accuracy" in found  # the same where each text has one label
        if metric == "negative_loss" or is_twice or not known:
            continue
        falls = any(word in name for word in ("loss", "perplexity", "error"))
        best = (min if falls else max)(known)
        is_told = len(set(known)) > 1
        cells = tuple(
            CompareCell(job.name, "" if value is None else f"{value:.4f}", is_told and value == best)
            for job, value in zip(jobs, values, strict=True)
        )
        yield CompareRow(f"{metric_name(metric)}, {split}" if metric else metric_name(split), cells)


def _times(jobs: Sequence[Job], stories: Sequence[Story]) -> Iterator[CompareRow]:
    lasted = [run_seconds(job, story) for job, story in _both(jobs, stories)]
    yield CompareRow("of training", _cells(jobs, [human_seconds(one) if one else "" for one in lasted]))
    forecasts = [_of(story.plan, "forecast") for story in stories]
    yield CompareRow("time forecast", _cells(jobs, [_words(one.get("seconds"), human_seconds) for one in forecasts]))
    peaks = [
        max((at for attempt in story.attempts for at in _resident(attempt.samples)), default=None) for story in stories
    ]
    yield CompareRow("most memory", _cells(jobs, [_words(one, human_bytes) for one in peaks]))
    yield CompareRow("steps", _cells(jobs, [_steps_words(job, story) for job, story in _both(jobs, stories)]))
    attempts = [len(story.attempts) or job.attempts for job, story in _both(jobs, stories)]
    yield CompareRow("attempts", _cells(jobs, [str(one) for one in attempts]))


def _steps_words(job: Job, story: Story) -> str:
    step, steps = steps_of(job, story)
    return "" if not steps else f"{steps:,}" if step == steps else f"{step:,} of {steps:,}"


def _chart(jobs: Sequence[Job], stories: Sequence[Story]) -> str:
    series = []
    for job, story, look in zip(jobs, stories, _LOOKS, strict=False):
        points = [(float(step), float(event["loss"])) for step, event in story.steps.items()]
        if points:
            drawn = smoothed(points) if len(points) >= _SMOOTH_FROM else points
            series.append(Series(name=f"#{job.pk} {job.name}", points=drawn, look=look))
    if not series:
        return ""
    ends = "; ".join(f"{one.name} ends at {one.points[-1][1]:.4g}" for one in series)
    whose = f" of {series[0].name}" if len(series) == 1 else ""  # one curve has no legend
    title = f"Training loss{whose}, smoothed"
    return line_chart(Chart(title=title, about=f"{ends}.", series=series, x_name="step"))


def _both(jobs: Sequence[Job], stories: Sequence[Story]) -> Iterator[tuple[Job, Story]]:
    return zip(jobs, stories, strict=True)


def _cells(jobs: Sequence[Job], values: Sequence[str]) -> tuple[CompareCell, ...]:
    return tuple(CompareCell(job.name, value) for job, value in zip(jobs, values, strict=True))


def _of(found: object, name: str) -> dict[str, object]:
    inside = found.get(name) if isinstance(found, dict) else None
    return inside if isinstance(inside, dict) else {}


def _resident(samples: Sequence[dict[str, object]]) -> Iterator[float]:
    for sample in samples:
        held = sample.get("resident_bytes")
        if isinstance(held, int | float):
            yield float(held)


def _words(value: object, write: Callable[[float], str]) -> str:
    return write(value) if isinstance(value, int | float) else ""


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)
