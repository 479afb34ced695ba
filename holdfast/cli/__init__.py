"""The `holdfast` command. Each command lives in its own file and is imported only when it is called."""

from importlib import import_module
from typing import Any

import click

from holdfast import __version__
from holdfast.core.errors import HoldfastError, render_error
from holdfast.core.text import closest

COMMANDS = {
    "doctor": "Check this machine, or a folder of installed packages, before a run.",
    "survey": "Read a dataset as train would, and say what was found and chosen.",
    "explain": "Name the cause in a log, or print what is known of a hazard.",
}


class LazyCommands(click.Group):
    """Lists commands without importing them, so that help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"holdfast.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, with a guess for a misspelt one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            guess = closest(args[0], COMMANDS)
            hint = f" Did you mean '{guess}'?" if guess else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list from COMMANDS, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Make fine-tuning runs finish: a finished model or a proven reason, never silence."""


def main() -> Any:
    """Run the command line; an error we understand is shown in four lines, not as a stack trace."""
    try:
        return cli()
    except HoldfastError as error:
        click.echo(render_error(error), err=True)
        raise SystemExit(error.exit_code) from None
