"""`holdfast watch`: look at a run as it goes."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the status as one JSON object a line, as it changes.")
def watch(folder: Path, as_json: bool) -> None:
    """Show RUN live: phase, step, time left, loss, memory, what the process does, and every attempt with its cause.

    q or Ctrl-C leaves the run alone. Ends by itself when the run does.
    """
    from holdfast.runs.live import watch_run

    watch_run(folder.resolve(), as_json=as_json)
