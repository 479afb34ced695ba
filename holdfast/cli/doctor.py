"""`holdfast doctor`: check this machine, or a folder of installed packages, before a run.

The first line is printed before anything else is imported, so that it never waits.
"""

import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__
from holdfast.cli import COMMANDS
from holdfast.core.env import wants_color

if TYPE_CHECKING:
    from holdfast.core.facts import MachineFacts
    from holdfast.runs.machine_checkup import Section, Style


class Seconds(click.FloatRange):
    """A time of up to a day; not "nan", which a range lets pass."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, 86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


_QUIET_SECONDS = 0.5  # what is known by then needs no moving line


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
    type=Seconds(),
    default=90.0,
    show_default="90",
    help="How long loading torch and one training step may take on a device; 0 tries none.",
)
def doctor(
    folder: Path | None,
    as_json: bool,
    verbose: bool,
    device_timeout_seconds: float,
) -> None:
    """Check this machine for what makes training runs fail, and say what to do about it.

    Exit code 0: healthy, warnings included. 3: a blocker was found. 2: the request is wrong.
    """
    screen = Screen(quiet=as_json)
    screen.say(f"holdfast {__version__}, checking {f'the packages in {folder}' if folder else 'this machine'}")

    from holdfast.runs.machine_checkup import (
        Style,
        check_folder,
        check_machine,
        render_close,
        render_findings,
        render_json,
    )

    style = Style(width=screen.width if screen.is_terminal else None, color=screen.has_color, verbose=verbose)
    if folder:
        checkup = check_folder(folder, on_section=lambda section, facts: screen.show_section(section, facts, style))
    else:
        checkup = check_machine(
            device_timeout_seconds,
            on_section=lambda section, facts: screen.show_section(section, facts, style),
            on_wait=screen.show_wait,
        )
    if as_json:
        screen.clear()
        click.echo(render_json(checkup))
    else:
        screen.say(*render_findings(checkup, style), *render_close(checkup, style, _healthy_next()))
    raise SystemExit(checkup.exit_code)


class Screen:
    """Lines on stdout, and on a terminal a moving line on stderr while something takes long."""

    def __init__(self, *, quiet: bool):
        self.quiet = quiet
        self.is_terminal = sys.stdout.isatty()
        self.has_color = self.is_terminal and wants_color()
        self.width = shutil.get_terminal_size().columns
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

    def show_section(self, section: "Section", facts: "MachineFacts", style: "Style") -> None:
        """Print one part of the facts."""
        from holdfast.runs.machine_checkup import render_section

        self.say(*render_section(section, facts, style))

    def show_wait(self, waiting: list[str], seconds: float) -> None:
        """Say what is being waited for, and since when."""
        if self._moving and seconds > _QUIET_SECONDS:
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
