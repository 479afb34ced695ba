"""`holdfast stop`: end a run with a checkpoint."""

from pathlib import Path

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--now", "at_once", is_flag=True, help="Do not wait for a checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def stop(folder: Path, at_once: bool, as_json: bool) -> None:
    """Ask RUN to save and end; `holdfast resume RUN` continues from there."""
    from holdfast.runs.resume_run import ask_to_stop
    from holdfast.runs.run_path import current_run

    def say(words: str) -> None:
        if not as_json:
            click.echo(f"holdfast: {words}")

    run = current_run(folder)
    words = ask_to_stop(run, at_once=at_once, wait_seconds=90, say=say)
    click.echo(to_json({"run": run, "said": words}) if as_json else f"holdfast: {words}")
