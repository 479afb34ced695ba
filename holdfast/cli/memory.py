"""`holdfast memory`: what worked on this machine."""

import click

from holdfast.core.artifacts import to_json
from holdfast.core.text import plural


@click.command()
@click.option("--forget", metavar="TEXT", help="Forget the commands that contain this text.")
@click.option("--forget-all", is_flag=True, help="Forget everything.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def memory(forget: str | None, forget_all: bool, as_json: bool) -> None:
    """Show which changes made which command finish on this machine. The next run of the command starts with them."""
    from holdfast.core.env import state_folder
    from holdfast.core.run_memory import RunMemory
    from holdfast.runs.wording import changes_text

    known = RunMemory.open()
    if forget_all or forget is not None:
        dropped = known.forget("" if forget_all else forget or "")
        text = f"forgot {plural(len(dropped), 'command')}"
        click.echo(to_json({"forgotten": dropped}) if as_json else text)
        return
    entries = list(known.entries().values())
    if as_json:
        click.echo(to_json({"folder": state_folder(), "entries": entries}))
        return
    for entry in entries:
        changes = changes_text(entry.changes) or "the settings as requested"
        click.echo(f"{entry.words}\n  {changes}; found after {plural(entry.attempts, 'attempt')}")
    click.echo(f"{plural(len(entries), 'command')} in {state_folder()}; next: holdfast memory --forget TEXT")
