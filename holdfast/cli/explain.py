"""`holdfast explain`: name the cause in a log, or print what is known of a hazard."""

import sys
from pathlib import Path
from typing import IO

import click

from holdfast.core.artifacts import to_json
from holdfast.core.errors import RequestError
from holdfast.core.exits import exit_words
from holdfast.core.text import closest
from holdfast.hazards import all_hazards
from holdfast.runs.explain import explain_log, page_of, render_diagnosis, render_page


@click.command()
@click.argument("what", metavar="LOG|SLUG|-")
@click.option(
    "--exit", "exit_status", default="", metavar="CODE_OR_SIGNAL", help="How the process ended: 1, -9, SIGSEGV, hang."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def explain(what: str, exit_status: str, as_json: bool) -> None:
    """Name the cause of a failure from its LOG (a file, or - for standard input), or print the page of a hazard's SLUG.

    A log may be anything a failed run left: program output, a Python or native stack, a macOS crash report or sample.
    """
    if exit_status and not exit_words(exit_status):
        raise RequestError(
            f"--exit {exit_status!r} is neither a code nor a signal",
            try_next=("--exit 1, --exit -9, --exit SIGSEGV, --exit hang",),
        )
    if what != "-" and not Path(what).exists() and (page := page_of(what)):
        click.echo(to_json(page) if as_json else render_page(what))
        return
    diagnosis = explain_log(sys.stdin.buffer if what == "-" else _log_file(what), exit_status)
    click.echo(to_json(diagnosis) if as_json else render_diagnosis(diagnosis))


def _log_file(what: str) -> Path | IO[bytes]:
    path = Path(what)
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():  # a pipe, such as the shell's <(command)
        return path.open("rb")
    if path.is_dir():
        raise RequestError(f"{what} is a folder, not a log", try_next=("holdfast explain FOLDER/the.log",))
    guess = closest(what, [hazard.slug for hazard in all_hazards()])
    raise RequestError(
        f"there is no file and no hazard named {what!r}",
        seen=f"{len(all_hazards())} hazards are known; the list is in docs/hazards/README.md",
        try_next=(f"holdfast explain {guess}",) if guess else ("holdfast explain LOG, with the path of a log file",),
    )
