"""`holdfast report`: one self-contained HTML page about a run."""

from pathlib import Path

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Write the page here instead of RUN/report.html."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def report(run: Path, out: Path | None, as_json: bool) -> None:
    """Write the report of RUN as one HTML page. RUN may be finished, failed or still running.

    The page shows curves, mistakes, attempts with causes and remedies, and the plan with reasons. It needs no network.
    """
    from holdfast.runs.report.page import write_report
    from holdfast.runs.state import read_state
    from holdfast.runs.wording import headline

    target, state = write_report(run, out).resolve(), read_state(run)
    if as_json:
        click.echo(to_json({"report": target, "state": state.state, "sentence": headline(state)}))
        return
    click.echo(f"[ok] {target}")
    click.echo(f"     {headline(state)}")
