"""`holdfast run`: supervise any training command, unmodified."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.core.artifacts import to_json
from holdfast.core.settings import DEFAULT_MAX_ATTEMPTS, SETTINGS

if TYPE_CHECKING:
    from holdfast.runs.supervise import RunSpec


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--run", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Folder of the run.")
@click.option("--name", default="", metavar="NAME", help="Name of the folder under runs/; default: the script's name.")
@click.option(
    "--resume-args",
    default="",
    metavar="ARGS",
    help="Arguments to add to COMMAND when it is restarted after it has saved a checkpoint.",
)
@click.option("--allow-changes", is_flag=True, help=SETTINGS["allow_changes"].help)
@click.option(
    "--max-attempts",
    default=DEFAULT_MAX_ATTEMPTS,
    show_default=True,
    type=click.IntRange(1, 1000),
    help=SETTINGS["max_attempts"].help,
)
@click.option(
    "--step-timeout",
    "step_timeout_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Maximum time for one step; learned by default.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Number of machines. Start the same command on each, with --run on shared storage.",
)
@click.option(
    "--nodes-wait",
    "nodes_wait_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="How long to wait for missing machines; default: 900.",
)
@click.option("--detach", is_flag=True, help="Run in the background, even after this terminal closes.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show the command's own output.")
@click.option("--no-memory", is_flag=True, help="Neither use nor record what worked on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show phases and every setting that was applied.")
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
    """Run COMMAND until it finishes. After a crash, a hang or a kill, name the cause and restart it more safely.

    Exit code 0: finished. 2: the request is wrong. 3: this machine cannot. 4: every fallback was tried. When COMMAND
    exits with a code of its own and no error, that code is passed on.
    """
    from holdfast.runs.command import command_spec, make_folder, make_request
    from holdfast.runs.join import has_finished, join_folder
    from holdfast.runs.wording import typed_path

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
            to_json({"run": place, "state": "finished"}) if as_json else f"holdfast: {typed_path(place)} has finished"
        )
        return
    if detach:
        from holdfast.runs.detach import detach_run

        pid = detach_run(place)
        if as_json:
            click.echo(to_json({"run": place, "supervisor_pid": pid}))
        else:
            shown = typed_path(place)
            click.echo(f"holdfast: {shlex.join(command)} is running in the background as {shown} (supervisor {pid})")
            click.echo(f"holdfast: next: holdfast watch {shown}")
        return
    foreground(place, command_spec(request), as_json=as_json, quiet=quiet, verbose=verbose)


def foreground(run_folder: Path, spec: "RunSpec", *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Supervise the run here, show what happens, and exit with its exit code."""
    from holdfast.cli.screen import RunView, Screen, result_fields
    from holdfast.core.events import RunOpened
    from holdfast.runs.member import take_part
    from holdfast.runs.state import read_state, with_result
    from holdfast.runs.stop_signals import asked_by_signals
    from holdfast.runs.supervise import StopRequest
    from holdfast.runs.wording import Line, clean, closing_lines, typed_path

    screen = Screen(prefix="holdfast: ", quiet=as_json)
    view = RunView(screen, verbose=verbose, shows_output=not quiet and not as_json)
    screen.line(Line(f"{clean(spec.words)}, in {typed_path(run_folder)}"))
    view(RunOpened(folder=str(run_folder)))
    stop = StopRequest()
    try:
        with asked_by_signals(stop):
            result = take_part(run_folder, spec, view, stop=stop)
    finally:
        view.close()
    state = with_result(read_state(run_folder, is_supervised=False), result)
    if as_json:
        click.echo(to_json(result_fields(state)))
    for line in closing_lines(state, with_cause=False):
        screen.line(line)
    raise SystemExit(result.exit_code)
