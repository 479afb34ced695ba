"""`holdfast memory`: what worked on this machine."""

import click

from holdfast.core.artifacts import to_json


@click.command()
@click.option("--forget", metavar="WORDS", help="Forget the commands that contain these words.")
@click.option("--forget-all", is_flag=True, help="Forget everything.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def memory(forget: str | None, forget_all: bool, as_json: bool) -> None:
    """Show which changes made which command finish on this machine; the next run of it starts from them."""
    from holdfast.core.env import state_folder
    from holdfast.runs.memory import Memory
    from holdfast.runs.wording import changes_text

    known = Memory.open()
    if forget_all or forget is not None:
        dropped = known.forget("" if forget_all else forget or "")
        words = f"forgot {len(dropped)} of what was remembered"
        click.echo(to_json({"forgotten": dropped}) if as_json else words)
        return
    entries = list(known.entries().values())
    if as_json:
        click.echo(to_json({"folder": state_folder(), "entries": entries}))
        return
    for entry in entries:
        changes = changes_text(entry.changes) or "as asked"
        click.echo(f"{entry.words}\n  {changes}; found after {entry.attempts} attempts")
    click.echo(f"{len(entries)} remembered in {state_folder()}. Next: holdfast memory --forget WORDS")
