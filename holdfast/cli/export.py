"""`holdfast export`: a run as a plain PyTorch script, a notebook or a container, without Holdfast."""

from pathlib import Path

import click

from holdfast.core.artifacts import to_json
from holdfast.core.text import human_bytes

_NEXT = {
    "script": "python {folder}/train.py",
    "notebook": "open {folder}/train.ipynb in Jupyter, or upload it to Colab together with data.zip",
    "docker": "docker build -t my-run {folder}",
}


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=click.Choice(tuple(_NEXT)), required=True, help="What to write.")
@click.option(
    "--out", metavar="FOLDER", type=click.Path(path_type=Path), help="Folder to write to; default: RUN/export/..."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def export(run: Path, kind: str, out: Path | None, as_json: bool) -> None:
    """Write a RUN as code that does not need Holdfast and trains the same weights, up to rounding.

    script: one file of plain PyTorch, with the data as arrays next to it. notebook: the same in cells, for Jupyter and
    Colab. docker: the same in a container, for the CPU or CUDA.
    """
    from holdfast.runs.exporters import describe_export, export_run

    folder = export_run(run, kind, out)
    found = describe_export(folder)
    if as_json:
        click.echo(to_json(found))
        return
    click.echo(f"[ok] {folder}: {len(found.files)} files, {human_bytes(found.bytes)}")
    click.echo(f"     Next: {_NEXT[kind].format(folder=folder)}")
