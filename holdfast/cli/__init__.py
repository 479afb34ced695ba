"""The `holdfast` command. Each command lives in its own file and is imported only when it is called."""

import contextlib
import errno
import os
import sys
from importlib import import_module
from pathlib import Path

import click

from holdfast import __version__
from holdfast.core.artifacts import to_json
from holdfast.core.disk_space import FULL, slug_of, why_not
from holdfast.core.errors import HoldfastError, MachineError, RequestError, printed_error, render_error
from holdfast.core.text import closest

COMMANDS = {
    "doctor": "Check this machine, or a folder of installed packages, before a run.",
    "selftest": "Check that what Holdfast relies on works on this machine.",
    "survey": "Read a dataset as train would, and show what was found and chosen.",
    "train": "Train a model on a dataset: one file in, one finished model out.",
    "models": "List the models on this machine, or get one.",
    "predict": "Use a finished model: get labels, answers or passages for texts or a file.",
    "demo": "Try a finished model on a page in the browser.",
    "export": "Export a run as a plain PyTorch script, a notebook or a container.",
    "report": "Write an HTML report of a run.",
    "run": "Run any unmodified training command until it finishes.",
    "resume": "Continue a run where it was.",
    "status": "Show the state of a run.",
    "watch": "Watch a run live.",
    "stop": "Ask a run to save and end.",
    "memory": "Show, or forget, what worked on this machine.",
    "bundle": "Pack a run for a bug report, without secrets, weights or data.",
    "serve": "Start the job service, with a web page for runs, datasets and models.",
    "worker": "Run jobs of the service on this machine.",
    "jobs": "Submit, watch and stop runs of a job service, from any machine.",
    "explain": "Name the cause of a failure in a log or a run, or describe a hazard.",
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
        """Find the command; suggest one for a misspelled name."""
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


def main() -> None:
    """Run the command line; an error we understand is shown in four lines, not as a stack trace."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  (open as long as the process lives)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a log may have characters that the terminal cannot print
    try:
        with cli.make_context("holdfast", sys.argv[1:]) as context:  # click's own main ends a closed pipe with 1
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        raise SystemExit(ended.exit_code) from None
    except HoldfastError as error:
        _say(error)
        raise SystemExit(error.exit_code) from None
    except click.ClickException as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()  # a group of commands was called alone: show its help
        else:
            _say(_as_ours(error))
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None  # what a shell reports for Ctrl-C
    except OSError as error:
        is_of_output = error.filename is None and error.errno in (errno.EPIPE, *FULL) and _is_output_lost()
        if error.errno not in FULL and not is_of_output:
            _own_up()
            raise
        full = _full(error, is_of_output)
        if is_of_output:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:  # the reader is gone, as in `| head -1`
            raise SystemExit(0) from None
        with contextlib.suppress(OSError):  # errors may go to the same full disk
            _say(full, is_output_lost=is_of_output)
        raise SystemExit(full.exit_code) from None
    except Exception:
        _own_up()
        raise


def _own_up() -> None:
    click.echo("error: this is a bug in Holdfast; the traceback below helps to find it", err=True)


def _is_output_lost() -> bool:
    """Whether it is our output that cannot be written: a failed write does not say to which file, so try again."""
    try:
        click.echo()
    except (OSError, ValueError):
        return True
    return False


def _full(error: OSError, is_of_output: bool) -> MachineError:
    """The error for a full disk, with the path where it is known."""
    place = Path("/dev/stdout" if is_of_output else error.filename or "").resolve()
    is_known = bool(error.filename) or place.is_file()
    what = "the output" if is_of_output else "a file"
    return MachineError(
        f"{what} could not be written" + (f": {place}" if is_known else ""),
        found=why_not(error, place) if is_known else error.strerror or str(error),
        try_next=("free some space, or redirect the output" if is_of_output else "free some space",),
        slug=slug_of(error),
    )


def _as_ours(error: click.ClickException) -> RequestError:
    """An error of click in the form of every other error."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return RequestError(_sentence(error.format_message()), try_next=("holdfast --help",))
    missing = error.param if isinstance(error, click.MissingParameter) else None
    if isinstance(missing, click.Argument):
        what = f"{context.command_path} needs {missing.make_metavar(context)}"
    else:
        what = _sentence(error.format_message())
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    return RequestError(what, try_next=(usage, f"{context.command_path} --help"))


def _sentence(said: str) -> str:
    flat = " ".join(said.split()).rstrip(".")
    return flat[:1].lower() + flat[1:]


def _say(error: HoldfastError, *, is_output_lost: bool = False) -> None:
    """Print an error for people, or as one JSON object."""
    if "--json" in sys.argv and not is_output_lost:
        click.echo(to_json({"error": printed_error(error)}))
    else:
        click.echo(render_error(error), err=True)
