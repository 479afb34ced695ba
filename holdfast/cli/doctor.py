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
    from holdfast.doctor.render import Style
    from holdfast.doctor.sections import Section


class Seconds(click.FloatRange):
    """A time of up to a day; refuses "nan", which a range would allow."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, 86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


_QUIET_SECONDS = 0.5  # shorter waits are not shown


@click.command()
@click.option(
    "--env",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Check this environment, site-packages folder or folder of unpacked wheels, even for another system.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show every fact with its source, every note and every remedy.")
@click.option(
    "--device-timeout",
    "device_timeout_seconds",
    metavar="SECONDS",
    type=Seconds(),
    default=90.0,
    show_default=True,
    help="Time limit per device for loading torch and one training step (0 skips the test).",
)
def doctor(
    folder: Path | None,
    as_json: bool,
    verbose: bool,
    device_timeout_seconds: float,
) -> None:
    """Check this machine for problems that make training runs fail, with remedies.

    Exit code 0: no blocker. 2: the request is wrong. 3: a blocker was found.
    """
    screen = DoctorOutput(quiet=as_json)
    screen.say(f"holdfast {__version__}, checking {f'the packages in {folder}' if folder else 'this machine'}")

    from holdfast.doctor.machine_checkup import check_folder, check_machine
    from holdfast.doctor.render import Style, render_close, render_findings, render_json

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


class DoctorOutput:
    """Lines on stdout, and on a terminal a progress line on stderr during long waits."""

    def __init__(self, *, quiet: bool):
        self.quiet = quiet
        self.is_terminal = sys.stdout.isatty()
        self.has_color = self.is_terminal and wants_color()
        self.width = shutil.get_terminal_size().columns
        self._moving = sys.stderr.isatty() and wants_color()  # others may not support carriage returns
        self._shown = ""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # for characters that the terminal cannot show

    def say(self, *lines: str) -> None:
        """Print lines for a person; nothing with --json."""
        self.clear()
        if not self.quiet:
            for line in lines:
                click.echo(line)

    def show_section(self, section: "Section", facts: "MachineFacts", style: "Style") -> None:
        """Print one section of the facts."""
        from holdfast.doctor.render import render_section

        self.say(*render_section(section, facts, style))

    def show_wait(self, waiting: list[str], seconds: float) -> None:
        """Show the open probes and the time so far."""
        if self._moving and seconds > _QUIET_SECONDS:
            self.clear()
            self._shown = f"... {', '.join(waiting)}, {seconds:.0f} s"[: self.width - 1]
            sys.stderr.write(self._shown)
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the progress line."""
        if self._shown:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            sys.stderr.flush()
            self._shown = ""


def _healthy_next() -> str:
    return "holdfast train DATA" if "train" in COMMANDS else "holdfast explain LOG, if a run fails"
