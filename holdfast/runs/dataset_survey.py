"""The survey's front door: read a dataset as training would, and write what was found in words or JSON."""

import shutil
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.core.artifacts import to_json
from holdfast.core.facts import DatasetFacts
from holdfast.data.badrows import BadRows, describe
from holdfast.data.data_request import TASKS, DataRequest, Progress, Task, no_progress
from holdfast.data.read import open_source
from holdfast.data.survey_dataset import survey
from holdfast.data.survey_table import TableSurvey
from holdfast.data.survey_vectors import list_members
from holdfast.data.tokenizer import ModelTokenizer

__all__ = (
    "TASKS",
    "DataRequest",
    "Task",
    "first_rows",
    "render_facts",
    "render_json",
    "survey_data",
    "survey_with_lengths",
)

Histograms = dict[str, list[tuple[int, int]]]

_SHOWN_LABELS = 12
_SHOWN_BAD_ROWS = 5
_WIDTH, _NARROW = 110, 60


def survey_data(
    request: DataRequest, tokenizer: Path | None = None, on_progress: Progress = no_progress
) -> DatasetFacts:
    """Read a dataset and say what it holds and how it would be used."""
    return survey(request, ModelTokenizer(tokenizer) if tokenizer else None, on_progress).facts


def survey_with_lengths(request: DataRequest, on_progress: Progress = no_progress) -> tuple[DatasetFacts, Histograms]:
    """Survey a dataset, and say how many texts of each role have which length."""
    found = survey(request, None, on_progress)
    if not isinstance(found, TableSurvey):
        return found.facts, {}
    return found.facts, {role: lengths.histogram() for role, lengths in found.tally.lengths.items()}


def first_rows(
    request: DataRequest, count: int, on_progress: Progress = no_progress
) -> tuple[tuple[str, ...], list[list[object]]]:
    """The columns of a file and its first rows, before anything is decided about them."""
    source = open_source(request.path, request, on_progress)
    if source.kind == "npz":
        return ("array", "shape"), [
            [one.name, " x ".join(map(str, one.shape))] for one in islice(list_members(source.path), count)
        ]
    rows = [[row.get(column) for column in source.columns] for _, row in islice(source.rows(BadRows(1.0)), count)]
    return source.columns, rows


def render_json(facts: DatasetFacts) -> str:
    """Write the facts as one JSON object."""
    return to_json(facts)


def render_facts(facts: DatasetFacts) -> str:
    """Write the facts for a terminal: what it is, what was chosen and why, what to look at."""
    return "\n".join(_lines(facts))


def _lines(facts: DatasetFacts) -> Iterator[str]:
    splits = ", ".join(f"{name} {rows:,}" for name, rows in facts.splits.items())
    yield from _wrapped(f"{facts.task}, {facts.form}: {facts.rows:,} rows ({splits})", "[ok] ", 5)
    for name, choice in facts.choices.items():
        if name != "form":  # the first line says it
            yield from _entry(name, f"{choice.value}  ({choice.because})")
    if facts.labels:
        yield from _entry("label names" if facts.multi_label else "classes", _labels(facts))
    for role, found in facts.lengths.items():
        sampled = f", from a sample of {found.measured:,}" if found.is_sample else ""
        limit = f"; the model takes {found.limit:,}" if found.limit else ""
        yield from _entry(
            f"{role} lengths",
            f"median {found.median:g} {found.unit}, 95 of 100 within {found.p95:,}, longest {found.longest:,}"
            f"{limit}{sampled}",
        )
    for warning in facts.warnings:
        yield from _wrapped(warning, "[!]  ", 5)
    for bad in facts.bad_rows[:_SHOWN_BAD_ROWS]:
        yield from _wrapped(describe(bad), "     bad: ", 10)
    if facts.bad_row_count > _SHOWN_BAD_ROWS:
        more = facts.bad_row_count - _SHOWN_BAD_ROWS
        yield from _wrapped(f"and {more:,} more bad rows; --json lists the first {len(facts.bad_rows)}", " " * 5, 5)


def _labels(facts: DatasetFacts) -> str:
    ordered = sorted(facts.labels.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} ({count:,})" for name, count in ordered[:_SHOWN_LABELS])
    more = f" and {len(ordered) - _SHOWN_LABELS} more" if len(ordered) > _SHOWN_LABELS else ""
    return f"{len(ordered)}: {shown}{more}"


def _entry(name: str, text: str) -> list[str]:
    return _wrapped(text, f"     {name:<15} ", 21)


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    width = max(38, min(_WIDTH, shutil.get_terminal_size((_WIDTH + 1, 24)).columns - 1))
    return textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * (indent if width >= _NARROW else min(indent, 7)),
        break_long_words=False,
        break_on_hyphens=False,
    )
