"""`holdfast report`: one self-contained HTML page with everything worth knowing of a run."""

from pathlib import Path

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write it here, not to RUN/report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def report(run: Path, out: Path | None, as_json: bool) -> None:
    """Write report.html of a RUN: finished, failed or still going, trained or supervised.

    Curves, mistakes, attempts with causes and remedies, the plan with reasons. One file that needs no network.
    """
    from holdfast.runs.report.headline import sentence_of, state_of
    from holdfast.runs.report.page import write_report
    from holdfast.runs.story import read_story

    target = write_report(run, out).resolve()
    story = read_story(run)
    if as_json:
        click.echo(to_json({"report": target, "state": state_of(story), "sentence": sentence_of(story)}))
        return
    click.echo(f"[ok] {target}")
    click.echo(f"     {sentence_of(story)}")
