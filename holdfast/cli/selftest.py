"""`holdfast selftest`: check that what Holdfast relies on works on this machine."""

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast import __version__
from holdfast.core.artifacts import to_json
from holdfast.core.errors import MachineError

if TYPE_CHECKING:
    from holdfast.selftest.workplace import PartResult

_MARKS = {"ok": "[ok]", "failed": "[x] ", "skipped": "[--]"}
_INDENT = 17


@click.command()
@click.option("--only", multiple=True, metavar="PART", help="Run only this part; repeat for several. Default: all.")
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Zip file to write; default: holdfast-selftest.zip, or the next free number.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def selftest(only: tuple[str, ...], target: Path | None, as_json: bool) -> None:
    """Check in at most five minutes that what Holdfast relies on works on this machine.

    Times the system's tools, causes three small faults that must be noticed and named, and compares a training step of
    each task on every device with the CPU. Writes one file to send with a report, without names, addresses or secrets;
    nothing is sent by itself.

    Exit code 0: everything works. 3: something that should work on this machine does not.
    """
    if not as_json:
        click.echo(f"holdfast {__version__} selftest: up to five minutes; press Ctrl-C to stop")
    from holdfast.core.text import human_bytes, human_seconds, plural
    from holdfast.runs.stop_signals import AtOnce, Stopped, asked_by_signals, exit_code_of
    from holdfast.selftest.selftest_run import run_selftest

    try:
        with asked_by_signals(AtOnce()):
            found, bundle = run_selftest(only, target, (lambda part: None) if as_json else _show)
    except Stopped as stopped:
        raise SystemExit(exit_code_of(stopped)) from None
    if as_json:
        click.echo(to_json({"state": "failed" if found.failed else "ok", "answers": found, "bundle": bundle}))
    else:
        taken = human_seconds(found.seconds)
        count = f"{len(found.failed)} of {plural(len(found.parts), 'part')}"
        click.echo(f"[x]  {count} failed: {', '.join(found.failed)}" if found.failed else f"[ok] all in {taken}")
        size = f"{plural(len(bundle.files), 'file')}, {human_bytes(bundle.packed_bytes)}"
        click.echo(f"     Please send {bundle.file} ({size}; names, addresses and secrets are removed).")
        click.echo(f"     Check it first: unzip -p {bundle.file} | less")
    if found.failed:
        raise SystemExit(MachineError.exit_code)


def _show(part: "PartResult") -> None:
    """Print one part's result as it comes, wrapped to a terminal's width."""
    head = f"{_MARKS[part.state]} {part.name:<{_INDENT - 6}} "
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    lines = textwrap.wrap(part.summary, max(20, width - _INDENT), break_long_words=False) or [""]
    click.echo("\n".join([head + lines[0], *(" " * _INDENT + line for line in lines[1:])]))
