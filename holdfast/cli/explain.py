"""`holdfast explain`: name the cause of a failure in a log or a run, or describe a hazard.

On a terminal the first line comes before the hazards are loaded, which takes a moment.
"""

import errno
import os
import stat
import sys
from pathlib import Path
from typing import IO

import click

from holdfast.core.artifacts import to_json
from holdfast.core.errors import RequestError
from holdfast.core.text import closest
from holdfast.logs.exits import parse_exit_status


@click.command()
@click.argument("what", metavar="LOG|RUN|SLUG|-", required=False)
@click.option(
    "--exit", "exit_status", default="", metavar="CODE_OR_SIGNAL", help="How the process ended: 1, -9, SIGSEGV, hang."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def explain(what: str | None, exit_status: str, as_json: bool) -> None:
    """Name the cause of a failure from its LOG (a file, or - for standard input) or from the folder of a RUN. With the
    SLUG of a hazard, describe that hazard; without an argument, list all hazards.

    A log may be anything a failed run left: program output, a Python or native stack, a macOS crash report or sample.
    """
    if what and not as_json and sys.stderr.isatty():
        click.echo(f"reading {what if len(what) <= 60 else what[:60] + '...'}", err=True)

    from holdfast.hazards import all_hazards
    from holdfast.runs.explanation import (
        explain_log,
        explain_run,
        is_run,
        page_of,
        render_diagnosis,
        render_list,
        render_page,
    )
    from holdfast.runs.observation_wording import diagnosis_fields

    if what is None:
        click.echo(
            to_json({"hazards": [hazard.page() for hazard in all_hazards()]}) if as_json else render_list(all_hazards())
        )
        return
    if exit_status and not parse_exit_status(exit_status):
        raise RequestError(
            f"--exit {exit_status!r} is neither a code nor a signal",
            try_next=("--exit 1, --exit -9, --exit SIGSEGV, --exit hang",),
        )
    if what != "-" and not os.path.lexists(what) and (page := page_of(what.lower())):
        click.echo(to_json(page) if as_json else render_page(what.lower()))
        return
    if what != "-" and Path(what).is_dir() and is_run(Path(what)):
        diagnosis, sentence = explain_run(Path(what))
        click.echo(to_json(diagnosis_fields(diagnosis)) if as_json else render_diagnosis(diagnosis, sentence))
        return
    diagnosis = explain_log(_standard_input() if what == "-" else _log_file(what), exit_status)
    click.echo(to_json(diagnosis_fields(diagnosis)) if as_json else render_diagnosis(diagnosis))


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:
        raise RequestError("standard input is closed", try_next=("holdfast explain LOG, with the path of a log file",))
    return sys.stdin.buffer


def _log_file(what: str) -> Path | IO[bytes]:
    path = Path(what)
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise _no_such(what, error) from None
    if stat.S_ISDIR(kind):
        from holdfast.runs.run_path import no_run

        refused = no_run(path, "a log or the folder of a run")
        refused.try_next += ("holdfast explain FOLDER/the.log",)
        raise refused
    return path if stat.S_ISREG(kind) else path.open("rb")  # a pipe, such as the shell's <(command)


def _no_such(what: str, error: OSError) -> RequestError:
    shown = what if len(what) <= 80 else what[:80] + "..."
    if os.path.lexists(what) and error.errno != errno.ENAMETOOLONG:
        return RequestError(f"{shown!r} cannot be opened: {error.strerror}", try_next=("check where its link points",))
    from holdfast.hazards import all_hazards

    guess = closest(what, [hazard.slug for hazard in all_hazards()])
    return RequestError(
        f"there is no file and no hazard named {shown!r}",
        found=f"{len(all_hazards())} hazards are known",
        try_next=(f"holdfast explain {guess}",)
        if guess
        else ("holdfast explain LOG", "holdfast explain, to list all hazards"),
    )
