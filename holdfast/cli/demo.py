"""`holdfast demo`: a page in the browser for trying a finished model."""

import sys
from pathlib import Path

import click

from holdfast.core.errors import MachineError


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65_535), help="Port of the page; default: the first free one from 7860.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Number of passages to find.")
@click.option(
    "--corpus", metavar="FILE", type=click.Path(path_type=Path), help="Search these texts instead of the run's corpus."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1, 32_768),
    default=256,
    show_default=True,
    help="Maximum length of an answer.",
)
def demo(run: Path, port: int | None, device: str, top: int, corpus: Path | None, max_new_tokens: int) -> None:
    """Try the model of a RUN on a page in the browser, with examples from its data. Only this machine can open it.

    Needs gradio: pip install 'holdfast[demo]'. Press Ctrl-C to stop.
    """
    from holdfast.cli.screen import Screen
    from holdfast.core.records import PredictOptions
    from holdfast.runs.demo_server import free_port, require_gradio, serve_demo
    from holdfast.runs.finished_model import find_model

    model = find_model(run)
    require_gradio()
    screen = Screen(stream=sys.stderr)

    def ready(address: str) -> None:
        screen.erase()
        click.echo(f"[ok] {address}   (press Ctrl-C to stop)")

    options = PredictOptions(
        device=device, top=top, max_new_tokens=max_new_tokens, corpus=str(corpus.resolve()) if corpus else None
    )
    code = serve_demo(model, free_port(port), options, ready, screen.working)
    screen.erase()
    if code:
        raise MachineError(f"the page ended with code {code}", found="its last lines are above")
