"""Runs side by side: the settings that differ, the metrics, the loss curves over each other, and the times."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString, mark_safe

from holdfast.core.records import Forecast, read_record
from holdfast.core.scores import metric_name
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.report.svg_charts import Chart, Series, line_chart, smoothed
from holdfast.runs.state import RunState
from holdfast.service.jobs.compare import compare_runs
from holdfast.service.jobs.job_state import read_job
from holdfast.service.jobs.job_wording import job_badge
from holdfast.service.jobs.models import Job
from holdfast.service.jobs.shown_errors import label_of
from holdfast.service.pages.run_page import run_seconds

_LOOKS = "abcdef"  # one for each
_SMOOTH_FROM = 12  # points


@dataclass(frozen=True, slots=True)
class CompareHead:
    """One run at the head of a column."""

    id: int
    name: str
    state: str
    badge: str
    look: str


@dataclass(frozen=True, slots=True)
class CompareCell:
    """One value; the best of its row is marked."""

    run: str
    text: str
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
    missing: int  # requested, but not visible to this user, or too many
    ids: str


def compare(jobs: Sequence[Job], missing: int = 0) -> ComparePage:
    """Put runs side by side."""
    states = [read_job(job) or RunState(folder=job.folder) for job in jobs]
    found = compare_runs(jobs)
    heads = tuple(
        CompareHead(job.pk, job.name, job.state, job_badge(job), look) for job, look in zip(jobs, _LOOKS, strict=False)
    )
    return ComparePage(
        runs=heads,
        settings=tuple(_settings(jobs, found["settings"])),
        metrics=tuple(_metrics(jobs, found["metrics"])),
        times=tuple(_times(jobs, states)),
        chart=mark_safe(_chart(jobs, states)),  # built by `tag`, which escapes
        missing=missing,
        ids=",".join(str(job.pk) for job in jobs),
    )


def _settings(jobs: Sequence[Job], found: Mapping[str, Sequence[object]]) -> Iterator[CompareRow]:
    """Settings that differ; a run without a plan shows only what was requested."""
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
        is_twice = metric == "micro_f1" and f"{split} accuracy" in found  # equal if each text has one label
        if is_twice or not known:
            continue
        falls = any(word in name for word in ("loss", "perplexity", "error"))
        best = (min if falls else max)(known)
        differ = len(set(known)) > 1
        cells = tuple(
            CompareCell(job.name, "" if value is None else f"{value:.4f}", differ and value == best)
            for job, value in zip(jobs, values, strict=True)
        )
        yield CompareRow(f"{metric_name(metric)}, {split}" if metric else metric_name(split), cells)


def _times(jobs: Sequence[Job], states: Sequence[RunState]) -> Iterator[CompareRow]:
    both = list(zip(jobs, states, strict=True))
    seconds = [run_seconds(job, state) for job, state in both]
    yield CompareRow("training time", _cells(jobs, [human_seconds(one) if one else "" for one in seconds]))
    forecasts = [read_record(job.folder, Forecast) for job in jobs]
    times = [human_seconds(one.seconds) if one and one.seconds else "" for one in forecasts]
    yield CompareRow("forecast", _cells(jobs, times))
    peaks = [max((one.peak_bytes or 0 for one in state.attempts), default=0) for state in states]
    yield CompareRow("peak memory", _cells(jobs, [human_bytes(one) if one else "" for one in peaks]))
    yield CompareRow(
        "steps", _cells(jobs, [_steps(state.step or job.step, state.steps or job.steps) for job, state in both])
    )
    yield CompareRow("attempts", _cells(jobs, [str(len(state.attempts) or job.attempts) for job, state in both]))


def _steps(step: int, steps: int) -> str:
    return "" if not steps else f"{steps:,}" if step == steps else f"{step:,} of {steps:,}"


def _chart(jobs: Sequence[Job], states: Sequence[RunState]) -> str:
    series = []
    for job, state, look in zip(jobs, states, _LOOKS, strict=False):
        points = [(float(step), loss) for step, loss in state.curves.losses()]
        if points:
            drawn = smoothed(points) if len(points) >= _SMOOTH_FROM else points
            series.append(Series(name=f"#{job.pk} {job.name}", points=drawn, look=look))
    if not series:
        return ""
    ends = "; ".join(f"{one.name} ends at {one.points[-1][1]:.4g}" for one in series)
    whose = f" of {series[0].name}" if len(series) == 1 else ""  # a single curve has no legend
    title = f"Training loss{whose}, smoothed"
    return line_chart(Chart(title=title, about=f"{ends}.", series=series, x_name="step"))


def _cells(jobs: Sequence[Job], values: Sequence[str]) -> tuple[CompareCell, ...]:
    return tuple(CompareCell(job.name, value) for job, value in zip(jobs, values, strict=True))


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)
