"""`holdfast doctor`: check this machine, or a folder of installed packages, before a run."""

import shutil
import sys
from pathlib import Path

import click

from holdfast import __version__
from holdfast.cli import COMMANDS
from holdfast.core.env import wants_color
from holdfast.core.facts import MachineFacts
from holdfast.runs import checkup as doctoring

_SPINNER_AFTER_SECONDS = 0.5


@click.command()
@click.option(
    "--env",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Check this environment, site-packages folder or folder of unpacked wheels instead, also another system's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show every fact with its source, every note and every remedy.")
@click.option(
    "--device-timeout",
    "device_timeout_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=90.0,
    show_default=True,
    help="How long one training step may take on each device; 0 tries none.",
)
def doctor(folder: Path | None, as_json: bool, verbose: bool, device_timeout_seconds: float) -> None:
    """Check this machine for what makes training runs fail, and say what to do about it.

    Exit code 0: healthy, warnings included. 3: a blocker was found. 2: the request is wrong.
    """
    screen = Screen(verbose=verbose, quiet=as_json)
    if folder:
        screen.say(f"holdfast {__version__}, checking the packages in {folder}")
        result = doctoring.check_folder(folder, on_part=screen.show_part)
    else:
        screen.say(f"holdfast {__version__}, checking this machine")
        result = doctoring.check_machine(device_timeout_seconds, on_part=screen.show_part, on_wait=screen.show_wait)
    screen.clear()
    if as_json:
        click.echo(doctoring.render_json(result))
    else:
        screen.say(*doctoring.render_findings(result, screen.style))
        screen.say(*doctoring.render_close(result, screen.style, _healthy_next()))
    raise SystemExit(result.exit_code)


class Screen:
    """Lines on stdout, and on a terminal a moving line on stderr while something takes long."""

    def __init__(self, *, verbose: bool, quiet: bool):
        self.quiet = quiet
        is_terminal = sys.stdout.isatty()
        self.width = shutil.get_terminal_size().columns
        self.style = doctoring.Style(
            width=self.width if is_terminal else None, color=is_terminal and wants_color(), verbose=verbose
        )
        self._moving = sys.stderr.isatty() and wants_color()  # a terminal that cannot colour may not go back in a line
        self._shown = ""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot write

    def say(self, *lines: str) -> None:
        """Print lines for a person; nothing when JSON was asked for."""
        self.clear()
        if not self.quiet:
            for line in lines:
                click.echo(line)
            sys.stdout.flush()

    def show_part(self, part: doctoring.Part, facts: MachineFacts) -> None:
        """Print one part of the facts."""
        self.say(*doctoring.render_part(part, facts, self.style))

    def show_wait(self, waiting: list[str], seconds: float) -> None:
        """Say what is being waited for, and since when."""
        if self._moving and seconds > _SPINNER_AFTER_SECONDS:
            self.clear()
            self._shown = f"... {', '.join(waiting)}, {seconds:.0f} s"[: self.width - 1]
            sys.stderr.write(self._shown)
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the moving line away."""
        if self._shown:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            sys.stderr.flush()
            self._shown = ""


def _healthy_next() -> str:
    return "holdfast train DATA" if "train" in COMMANDS else "holdfast explain LOG, when a run fails"
