"""Compares runs: the settings that differ, and all metrics."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core.scores import ordered_scores
from holdfast.runs.state import read_records
from holdfast.service.jobs.models import Job

MOST_RUNS = 6  # more curves in one chart can hardly be told apart
_SPLITS = ("test", "validation")
_WHERE = ("step", "steps")  # at which the weights were measured: not a metric


def compare_runs(jobs: Sequence[Job]) -> dict[str, dict[str, list[Any]]]:
    """Settings that differ and all metrics; one value per run, in the order of the runs, None if it has none."""
    settings = _side_by_side([_chosen(job) for job in jobs])
    differing = {name: values for name, values in settings.items() if any(value != values[0] for value in values)}
    return {"settings": differing, "metrics": _side_by_side([dict(_metrics(job.metrics)) for job in jobs])}


def _side_by_side(found: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: [one.get(name) for one in found] for name in names}


def _chosen(job: Job) -> dict[str, Any]:
    """The requested settings, and those that the plan chose."""
    found = {name: choice.value for name, choice in read_records(job.folder).choices.items()}
    return {**found, **job.request, "dataset": job.dataset_id}


def _metrics(metrics: object) -> Iterator[tuple[str, float]]:
    if not isinstance(metrics, dict):
        return
    for split in (*_SPLITS, *(name for name in metrics if name not in (*_SPLITS, *_WHERE))):
        found = metrics.get(split)
        if isinstance(found, dict):
            yield from ((f"{split} {name}", value) for name, value in ordered_scores(found).items())
        elif _is_number(found):
            yield split, float(found)  # type: ignore[arg-type]  # filtered to numbers above


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
