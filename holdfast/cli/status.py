"""`holdfast status`: where a run stands, from its folder alone."""

import shutil
from pathlib import Path

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def status(folder: Path, as_json: bool) -> None:
    """Say where RUN stands: its state, phase, step, loss, time left, and every attempt with its cause."""
    from holdfast.runs.live import render_glance
    from holdfast.runs.status import read_glance

    glance = read_glance(folder.resolve())
    if as_json:
        click.echo(to_json(glance.status))
        return
    for line in render_glance(glance, width=shutil.get_terminal_size((100, 24)).columns):
        click.echo(line)
