"""`holdfast bundle`: pack a run for a bug report."""

from pathlib import Path

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Zip file to write; default: RUN-bundle.zip, or the next free number.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def bundle(run: Path, target: Path | None, as_json: bool) -> None:
    """Pack the logs, stacks and evidence of RUN for a bug report.

    Tokens, passwords, user names, home folders, host names and addresses are removed from them. Weights and data are
    not packed.
    """
    from holdfast.runs.support_bundle import pack_run, render_bundle

    packed = pack_run(run, target)
    click.echo(to_json(packed) if as_json else render_bundle(packed))
