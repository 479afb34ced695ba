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
from holdfast.core.errors import RequestError

if TYPE_CHECKING:
    from holdfast.core.facts import MachineFacts
    from holdfast.runs.checkup import Part, Style


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
@click.option("--fix", is_flag=True, help="macOS: let packages use torch's OpenMP copy through links; asks first.")
@click.option("--unfix", is_flag=True, help="Take back what --fix did.")
@click.option("--yes", is_flag=True, help="Do not ask before --fix or --unfix.")
def doctor(
    folder: Path | None,
    as_json: bool,
    verbose: bool,
    device_timeout_seconds: float,
    fix: bool,
    unfix: bool,
    yes: bool,
) -> None:
    """Check this machine for what makes training runs fail, and say what to do about it.

    Exit code 0: healthy, warnings included. 3: a blocker was found. 2: the request is wrong.
    """
    if fix and unfix:
        raise RequestError("--fix and --unfix undo each other", seen="both were given", try_next=("give one of them",))
    if fix or unfix:
        change_links(folder or Path(sys.prefix), undo=unfix, yes=yes, as_json=as_json)
        return
    screen = Screen(quiet=as_json)
    screen.say(f"holdfast {__version__}, checking {f'the packages in {folder}' if folder else 'this machine'}")

    from holdfast.runs.checkup import Style, check_folder, check_machine, render_close, render_findings, render_json

    style = Style(width=screen.width if screen.is_terminal else None, color=screen.has_color, verbose=verbose)
    if folder:
        checkup = check_folder(folder, on_part=lambda part, facts: screen.show_part(part, facts, style))
    else:
        checkup = check_machine(
            device_timeout_seconds,
            on_part=lambda part, facts: screen.show_part(part, facts, style),
            on_wait=screen.show_wait,
        )
    if as_json:
        screen.clear()
        click.echo(render_json(checkup))
    else:
        screen.say(*render_findings(checkup, style), *render_close(checkup, style, _healthy_next()))
    raise SystemExit(checkup.exit_code)


def change_links(folder: Path, *, undo: bool, yes: bool, as_json: bool) -> None:
    """Show what --fix or --unfix would do, ask, and do it."""
    from holdfast.core.artifacts import to_json
    from holdfast.runs.checkup import links_to_make, links_to_undo

    change = links_to_undo(folder) if undo else links_to_make(folder)
    if not as_json:
        click.echo(change.text)
    said: tuple[str, ...] = ()
    if change.has_work:
        said = change.apply() if yes or _is_agreed(as_json) else ("nothing was changed",)
    if as_json:
        click.echo(to_json({"plan": change.plan, "said": said}))
    for line in () if as_json else said:
        click.echo(line)


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

    def show_part(self, part: "Part", facts: "MachineFacts", style: "Style") -> None:
        """Print one part of the facts."""
        from holdfast.runs.checkup import render_part

        self.say(*render_part(part, facts, style))

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


def _is_agreed(as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        raise RequestError(
            "this changes the environment, and there is no terminal to ask on",
            seen="--json" if as_json else "standard input is no terminal",
            try_next=("add --yes if the plan is what you want",),
        )
    return click.confirm("Do it?", default=False)


def _healthy_next() -> str:
    return "holdfast train DATA" if "train" in COMMANDS else "holdfast explain LOG, when a run fails"
