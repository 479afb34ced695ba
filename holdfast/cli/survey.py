"""`holdfast survey`: read a dataset as training would, and say what was found and chosen."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from holdfast.runs import survey as surveying

_PATH = click.Path(path_type=Path, readable=False)  # whether it can be read is said in our own words
_MOVES_EVERY_SECONDS = 0.3
_LINE_EVERY_SECONDS = 10


@click.command()
@click.argument("data", type=_PATH)
@click.option("--task", type=click.Choice(surveying.TASKS), help="What to train; found out when not given.")
@click.option("--validation", type=_PATH, help="File with the rows to validate on.")
@click.option("--test", type=_PATH, help="File with the rows to test on.")
@click.option("--negatives", type=_PATH, help="JSON lines with near-misses of queries.")
@click.option("--text-column", "text_columns", multiple=True, help="Column with the text; several are joined.")
@click.option("--label-column", help="Column with the labels.")
@click.option("--group-column", help="Rows with the same value here stay in one split.")
@click.option("--multi-label/--single-label", "multi_label", default=None, help="Any number of labels a row, or one.")
@click.option("--encoding", help="Such as cp1252, latin-1, gb18030; found out when not given.")
@click.option("--delimiter", help="Such as ; or 'tab'; found out when not given.")
@click.option("--header/--no-header", default=None, help="Whether the first row names the columns.")
@click.option("--min-score", type=float, help="Scored pairs from here on belong together.")
@click.option(
    "--max-bad-rows",
    "max_bad_share",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Share of rows that may be unusable.",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Decides which rows are cut for which split.")
@click.option(
    "--tokenizer",
    type=_PATH,
    metavar="FOLDER",
    help="Folder of a model; lengths are then counted in its tokens.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def survey(data: Path, tokenizer: Path | None, as_json: bool, delimiter: str | None, **given: Any) -> None:
    """Read DATA as `train` would, and say what was found and chosen. Trains nothing.

    DATA is a file (CSV, TSV, JSON, JSON lines, Parquet, Excel, NPZ; each but the last also gzipped), a folder with a
    file for each split, or a BEIR folder. Exit code 2: nothing sensible can be trained on it.
    """
    request = surveying.DataRequest(
        path=data,
        delimiter="\t" if delimiter in ("tab", "\\t") else delimiter,
        **given,
    )
    screen = Waiting(quiet=as_json)
    try:
        facts = surveying.survey_data(request, tokenizer, screen.show)
    finally:
        screen.clear()
    click.echo(surveying.render_json(facts) if as_json else surveying.render_facts(facts))


class Waiting:
    """Says on stderr what is being done: a moving line on a terminal, now and then a plain line elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._every_seconds = _MOVES_EVERY_SECONDS if self._is_terminal else _LINE_EVERY_SECONDS
        self._quiet = quiet and not self._is_terminal
        self._started = self._shown_at = time.monotonic()
        self._width = 0

    def show(self, what: str, done: int, whole: int | None) -> None:
        """Say what is being done, unless it was said just now."""
        now = time.monotonic()
        if self._quiet or now - self._shown_at < self._every_seconds:
            return
        self._shown_at = now
        text = f"... {what}: {done:,}" + (f" of {whole:,}" if whole else "") + f", {now - self._started:.0f} s"
        sys.stderr.write("\r" + text.ljust(self._width) if self._is_terminal else text + "\n")
        sys.stderr.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Take the moving line away."""
        if self._width and self._is_terminal:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
