"""`holdfast status`: where a run is, from its folder alone."""

from pathlib import Path

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def status(folder: Path, as_json: bool) -> None:
    """Show the state of RUN: phase, step, loss, time left, and every attempt with its cause."""
    from holdfast.cli.screen import run_lines, status_fields, width
    from holdfast.runs.run_path import current_run, require_request
    from holdfast.runs.state import read_state

    run = current_run(folder)
    require_request(run)
    state = read_state(run)
    if as_json:
        click.echo(to_json(status_fields(state)))
        return
    for line in run_lines(state, width()):
        click.echo(line)
