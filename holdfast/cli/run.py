"""`holdfast run`: supervise any training command, unmodified."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import lose
from holdfast.core.artifacts import to_json

if TYPE_CHECKING:
    from holdfast.runs.supervise import Job, Result


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--run", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Where the run lives.")
@click.option("--name", default="", metavar="NAME", help="Name of the folder under runs/; the script's by default.")
@click.option("--resume-args", default="", metavar="ARGS", help="Added to COMMAND when it is started again.")
@click.option("--allow-changes", is_flag=True, help="Also try what changes what is learned, last.")
@click.option(
    "--max-attempts", default=12, show_default=True, type=click.IntRange(1, 1000), help="Futile starts at the most."
)
@click.option(
    "--step-timeout",
    "step_timeout_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="The longest that one step may take; learned by default.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Run on N machines that share --run FOLDER; each starts this same command, and joins.",
)
@click.option(
    "--nodes-wait",
    "nodes_wait_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="How long machines that are missing are waited for; 900 by default.",
)
@click.option("--detach", is_flag=True, help="Go on in the background, also when this terminal closes.")
@click.option("--quiet", is_flag=True, help="Do not show the command's own output.")
@click.option("--no-memory", is_flag=True, help="Neither use nor keep what worked on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show phases and every applied setting.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def run(
    folder: Path | None,
    name: str,
    resume_args: str,
    allow_changes: bool,
    max_attempts: int,
    step_timeout_seconds: float | None,
    nodes: int | None,
    nodes_wait_seconds: float | None,
    detach: bool,
    quiet: bool,
    no_memory: bool,
    as_json: bool,
    verbose: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND until it has finished: a crash, a hang or a kill is named, and it is started again more safely.

    Exit code 0: finished. 2: the request is wrong. 3: this machine cannot. 4: every rung was tried. A command that
    leaves by a code of its own, without an error, passes that code on.
    """
    from holdfast.runs.command import command_job, make_folder, make_request
    from holdfast.runs.join import has_finished, join_folder

    request = make_request(
        command,
        resume_args=tuple(shlex.split(resume_args)),
        allow_changes=allow_changes,
        max_attempts=max_attempts,
        step_timeout_seconds=step_timeout_seconds,
        remembers=not no_memory,
        nodes=nodes or 1,
        nodes_wait_seconds=nodes_wait_seconds,
    )
    place = join_folder(request, folder) if nodes else make_folder(request, folder, name)
    if nodes and has_finished(place):
        click.echo(
            to_json({"run": place, "state": "finished"}) if as_json else f"holdfast: {shown(place)} has finished"
        )
        return
    if detach:
        from holdfast.runs.detach import detach_run

        pid = detach_run(place)
        if as_json:
            click.echo(to_json({"run": place, "supervisor_pid": pid}))
        else:
            click.echo(f"holdfast: {shlex.join(command)} runs in the background as {shown(place)} (supervisor {pid})")
            click.echo(f"holdfast: next   holdfast watch {shown(place)}")
        return
    foreground(place, command_job(request), as_json=as_json, quiet=quiet, verbose=verbose)


def foreground(run_folder: Path, job: "Job", *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Supervise here, show what happens, and leave with the run's exit code."""
    from holdfast.runs.follower import take_part
    from holdfast.runs.stopping import asked_by_signals
    from holdfast.runs.supervise import StopRequest, supervise
    from holdfast.runs.view import Foreground, clean

    view = Foreground(run_folder, _write, shows_output=not quiet, verbose=verbose)
    if not as_json:
        view.say(f"{clean(job.words)}, in {shown(run_folder)}")
    stop = StopRequest()
    with asked_by_signals(stop):
        bring_to_its_end = take_part if job.nodes > 1 else supervise
        result = bring_to_its_end(run_folder, job, on_event=None if as_json else view, stop=stop)
    if as_json:
        click.echo(to_json({"run": run_folder, **_plain(result)}))
    else:
        from holdfast.runs.view import closing_lines

        place = shown(run_folder)
        for line in closing_lines(
            result.state, result.sentence, result.seconds, place, result.remedies, result.slug, view.cause
        ):
            view.say(line)
    raise SystemExit(result.exit_code)


def shown(path: Path) -> str:
    """A path as one would type it from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _plain(result: "Result") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(result)


def _write(content: bytes) -> None:
    """Show something; that the reader or the terminal has gone must not end the run."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        lose(error)
