"""`holdfast demo`: a page in the browser to try a finished model on."""

import sys
from pathlib import Path

import click

from holdfast.core.errors import MachineError


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65_535), help="Port of the page; the first free one from 7860 on.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Passages to find.")
@click.option("--corpus", metavar="FILE", type=click.Path(path_type=Path), help="Search these texts.")
@click.option("--max-new-tokens", type=click.IntRange(1, 32_768), default=256, show_default=True, help="Of an answer.")
def demo(run: Path, port: int | None, device: str, top: int, corpus: Path | None, max_new_tokens: int) -> None:
    """Open a page for the model of a RUN, with examples from its data. Only this machine can reach it.

    Needs gradio: pip install 'holdfast[demo]'. Ctrl-C ends it.
    """
    from holdfast.cli.screen import Screen
    from holdfast.runs.demo_server import free_port, require_gradio, serve_demo
    from holdfast.runs.finished_model import find_model

    model = find_model(run)
    require_gradio()
    screen = Screen(stream=sys.stderr)

    def ready(address: str) -> None:
        screen.erase()
        click.echo(f"[ok] {address}   (Ctrl-C ends it)")

    options = {"device": device, "top": top, "max_new_tokens": max_new_tokens}
    options |= {"corpus": str(corpus.resolve())} if corpus else {}
    code = serve_demo(model, free_port(port), options, ready, screen.working)
    screen.erase()
    if code:
        raise MachineError(f"the page ended with code {code}", seen="its last lines are above")
