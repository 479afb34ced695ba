"""`holdfast survey`: read a dataset as training would, and say what was found and chosen."""

from pathlib import Path
from typing import Any

import click

from holdfast.cli.waiting import Waiting
from holdfast.runs import dataset_survey as surveying

_PATH = click.Path(path_type=Path, readable=False)  # whether it can be read is said in our own words


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
