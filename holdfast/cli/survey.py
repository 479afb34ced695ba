"""`holdfast survey`: read a dataset as training would, and show what was found and chosen."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from holdfast.cli.screen import Screen
from holdfast.core.artifacts import to_json
from holdfast.core.facts import TASKS, DatasetFacts
from holdfast.core.path_guess import is_url
from holdfast.core.settings import SETTINGS
from holdfast.data.badrows import describe
from holdfast.data.data_request import DataRequest
from holdfast.data.download import local_copy
from holdfast.data.label_check import checked_facts
from holdfast.data.survey_dataset import printed_facts
from holdfast.data.survey_dataset import survey as survey_dataset
from holdfast.data.tokenizer import ModelTokenizer

_SHOWN_LABELS = 12
_SHOWN_BAD_ROWS = 5
_WIDTH, _NARROW = 110, 60
_help = {name: one.help for name, one in SETTINGS.items()}.__getitem__  # the same as in `train`


class _DataPath(click.Path):
    """A path, or a URL as it was given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check one argument."""
        return value if isinstance(value, str) and is_url(value) else super().convert(value, param, ctx)


_PATH = click.Path(path_type=Path, readable=False)  # an unreadable file gets our own error
_DATA = _DataPath(path_type=Path, readable=False)


@click.command()
@click.argument("data", type=_DATA)
@click.option("--task", type=click.Choice(TASKS), help=_help("task"))
@click.option("--validation", type=_DATA, help=_help("validation"))
@click.option("--test", type=_DATA, help=_help("test"))
@click.option("--negatives", type=_PATH, help=_help("negatives"))
@click.option("--text-column", "text_columns", multiple=True, help=_help("text_column"))
@click.option("--label-column", help=_help("label_column"))
@click.option("--group-column", help=_help("group_column"))
@click.option("--multi-label/--single-label", "multi_label", default=None, help=_help("multi_label"))
@click.option("--encoding", help=_help("encoding"))
@click.option("--delimiter", help=_help("delimiter"))
@click.option("--header/--no-header", default=None, help=_help("header"))
@click.option("--min-score", type=float, help=_help("min_score"))
@click.option(
    "--max-bad-rows",
    "max_bad_share",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help=_help("max_bad_rows"),
)
@click.option("--seed", type=int, default=42, show_default=True, help=_help("seed"))
@click.option(
    "--tokenizer",
    type=_PATH,
    metavar="FOLDER",
    help="Measure lengths in the tokens of the model in this folder.",
)
@click.option(
    "--check-labels",
    "doubtful",
    type=_PATH,
    metavar="FILE",
    help="Compare each label with a prediction that has not seen it; write the rows that disagree to this file (CSV).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def survey(
    data: Path, tokenizer: Path | None, doubtful: Path | None, as_json: bool, delimiter: str | None, **given: Any
) -> None:
    """Read DATA as `train` would, and show what was found and chosen. Nothing is trained.

    DATA is a file (CSV, TSV, JSON, JSON lines, Parquet, Arrow, Excel, NPZ), also gzipped or in an archive; a folder
    with a file for each split or a subfolder for each class, a BEIR folder or one saved by `datasets`; or the URL of a
    file. Exit code 2: the data is not suitable for training.
    """
    screen = Screen(stream=sys.stderr, quiet=as_json)
    try:
        local = {name: _downloaded(value, screen) for name, value in (("path", data), *given.items())}
        request = DataRequest(**local, delimiter="\t" if delimiter in ("tab", "\\t") else delimiter)
        tokens = ModelTokenizer(tokenizer) if tokenizer else None
        found = survey_dataset(request, tokens, screen.working)
        facts = checked_facts(found.source, found.facts, doubtful, screen.working) if doubtful else found.facts
    finally:
        screen.erase()
    click.echo(to_json(printed_facts(facts)) if as_json else render_facts(facts))


def _downloaded(value: Any, screen: Screen) -> Any:
    return local_copy(value, screen.working) if isinstance(value, str) and is_url(value) else value


def render_facts(facts: DatasetFacts) -> str:
    """Write the facts for a terminal: what the data is, what was chosen and why, what to check."""
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
        limit = f"; the model's limit is {found.limit:,}" if found.limit else ""
        yield from _entry(
            f"{role} lengths",
            f"median {found.median:g} {found.unit}, 95% within {found.p95:,}, longest {found.longest:,}{limit}",
        )
    for warning in facts.warnings:
        yield from _wrapped(warning.line, "[!]  ", 5)
    for bad in facts.bad_rows[:_SHOWN_BAD_ROWS]:
        yield from _wrapped(describe(bad), "     left out: ", 10)
    if facts.bad_row_count > _SHOWN_BAD_ROWS:
        more = facts.bad_row_count - _SHOWN_BAD_ROWS
        yield from _wrapped(f"and {more:,} more rows; --json lists the first {len(facts.bad_rows)}", " " * 5, 5)


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
