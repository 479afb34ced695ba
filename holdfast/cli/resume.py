"""`holdfast resume`: continue a run from its folder."""

from pathlib import Path
from typing import Any

import click

from holdfast.cli.run import foreground
from holdfast.cli.setting_options import with_settings
from holdfast.core.artifacts import to_json
from holdfast.core.runfolder import REPORT
from holdfast.core.settings import TrainRequest, names_with


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@with_settings(names_with("resume"))
@click.option("--detach", is_flag=True, help="Run in the background, even after this terminal closes.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show the command's own output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show phases and every setting that was applied.")
def resume(folder: Path, detach: bool, quiet: bool, as_json: bool, verbose: bool, **given: Any) -> None:
    """Continue RUN where it was: after Ctrl-C, a kill, a crash, or a restart of the machine.

    Processes that an earlier supervisor left are ended first. A run that already has a supervisor is refused. Settings
    stay as they were unless given here. None of these options affects what the model learns.
    """
    from holdfast.runs.resume_run import ask_for, command_of
    from holdfast.runs.run_path import require_request
    from holdfast.runs.state import read_state
    from holdfast.runs.wording import typed_path

    run = folder.resolve()
    if read_state(run).state == "finished":
        if isinstance(require_request(run), TrainRequest) and not (run / REPORT).exists():
            from holdfast.runs.report.page import write_report

            write_report(run)  # it was killed after its result and before its report
        click.echo(
            to_json({"run": run, "state": "finished"}) if as_json else f"holdfast: {typed_path(run)} has finished"
        )
        return
    if changes := {name: value for name, value in given.items() if value is not None}:
        ask_for(run, changes)
    is_train = isinstance(require_request(run), TrainRequest)  # it may not be planned yet
    job = None if is_train else command_of(run)
    if detach:
        from holdfast.runs.detach import detach_run

        pid = detach_run(run)
        click.echo(
            to_json({"run": run, "supervisor_pid": pid})
            if as_json
            else f"holdfast: {typed_path(run)} continues in the background (supervisor {pid})"
        )
        return
    if job is None:
        from holdfast.cli.train import resume_here

        resume_here(run, as_json=as_json, quiet=quiet, verbose=verbose)
        return
    foreground(run, job, as_json=as_json, quiet=quiet, verbose=verbose)
