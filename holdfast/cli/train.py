"""`holdfast train`: from a dataset to a finished model. Its options are the table of settings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import put
from holdfast.cli.setting_options import ShortHelp, is_given, show_all, with_settings
from holdfast.core.artifacts import to_json, to_plain
from holdfast.core.errors import MachineError, NotNow, RequestError
from holdfast.core.setting_values import make_request, read_toml
from holdfast.core.settings import SETTINGS, nodes_of

if TYPE_CHECKING:
    from holdfast.cli.screen import EventLines, RunView, Screen


@click.command(cls=ShortHelp)
@click.argument("data", required=False)
@with_settings(SETTINGS.keys() - {"data"})
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with any of these settings.")
@click.option("--detach", is_flag=True, help="Run in the background, even after this terminal closes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
@click.option("--json-lines", "as_lines", is_flag=True, help="Print each event as a line of JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the result.")
@click.option("-v", "--verbose", is_flag=True, help="Show every choice with its reason.")
@click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=show_all, help="Show all options and exit."
)
def train(
    data: str | None,
    config: Path | None,
    detach: bool,
    as_json: bool,
    as_lines: bool,
    quiet: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """Train a model on DATA, from a file or folder to a finished model.

    The task, the columns and every setting that is not given are chosen for you; -v prints the reasons.
    Exit code 0: finished. 2: the request is wrong. 3: this machine cannot. 4: every fallback was tried.
    """
    for one, other in (
        (as_json and "--json", as_lines and "--json-lines"),
        (quiet and "--quiet", verbose and "--verbose"),
    ):
        if one and other:
            raise RequestError(
                f"{one} and {other} cannot be combined", try_next=[f"leave out {one}", f"leave out {other}"]
            )
    settings: dict[str, object] = dict(read_toml(config)) if config else {}
    asked = {name: value for name, value in given.items() if value is not None and value != () and is_given(name)}
    request = make_request({**settings, **asked, **({"data": data} if data else {})})
    if not as_json and not as_lines and not quiet:
        put(f"holdfast train {Path(request.data).name or request.from_run}\n")  # before the slower imports
    screen, view = _view(as_json, as_lines, quiet, verbose)

    from holdfast.runs.join import has_finished
    from holdfast.runs.lease import AlreadyHeld
    from holdfast.runs.new_train import discard, start_train, with_local_data
    from holdfast.runs.wording import Line

    if nodes_of(request) > 1:
        screen.line(Line("reading the data, which must be the same on every machine", ".."))
    run = start_train(with_local_data(request, screen.working))
    if has_finished(run):  # on the other machines
        view.close()
        _say_finished(run, as_json=as_json)
        return
    if detach:
        view.close()
        _detach(run, as_json=as_json)
        return
    try:
        _show(run, screen, view, as_json=as_json, as_lines=as_lines)
    except (NotNow, AlreadyHeld):
        raise  # it continues later, or elsewhere
    except (RequestError, MachineError):
        discard(run)  # refused: nothing is left behind
        raise


def _say_finished(run: Path, *, as_json: bool) -> None:
    from holdfast.runs.wording import typed_path

    click.echo(to_json({"run": run, "state": "finished"}) if as_json else f"holdfast: {typed_path(run)} has finished")


def _detach(run: Path, *, as_json: bool) -> None:
    from holdfast.runs.detach import detach_run
    from holdfast.runs.wording import typed_path

    pid, shown = detach_run(run), typed_path(run)
    if as_json:
        click.echo(to_json({"run": run, "supervisor_pid": pid}))
    else:
        click.echo(f"running in the background as {shown} (supervisor {pid}); next: holdfast watch {shown}")


def resume_here(run: Path, *, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Continue a training run from its folder, shown as `train` shows it."""
    screen, view = _view(as_json, False, quiet, verbose)
    _show(run, screen, view, as_json=as_json, as_lines=False)


def _show(run: Path, screen: "Screen", view: "RunView | EventLines", *, as_json: bool, as_lines: bool) -> None:
    from holdfast.cli.screen import Screen, result_fields
    from holdfast.runs.state import read_state, with_result
    from holdfast.runs.stop_signals import asked_by_signals, exit_code_of
    from holdfast.runs.train_run import resume_train
    from holdfast.runs.wording import Line, closing_lines, typed_path

    try:
        result = resume_train(run, on_event=view, guard=asked_by_signals)
    except KeyboardInterrupt as asked:
        view.close()
        screen.line(Line(f"stopped; nothing is lost. Continue with `holdfast resume {typed_path(run)}`", "--"))
        raise SystemExit(exit_code_of(asked)) from None
    finally:
        view.close()
    state = with_result(read_state(run, is_supervised=False), result)
    if as_json or as_lines:
        fields = result_fields(state)
        click.echo(to_json(fields) if as_json else json.dumps({"event": "result", "result": to_plain(fields)}))
    else:
        ending = Screen()  # also with -q
        for line in closing_lines(state, with_cause=False):
            ending.line(line)
    raise SystemExit(result.exit_code)


def _view(as_json: bool, as_lines: bool, quiet: bool, verbose: bool) -> "tuple[Screen, RunView | EventLines]":
    from holdfast.cli.screen import EventLines, RunView, Screen

    screen = Screen(quiet=as_json or as_lines or quiet)
    return screen, EventLines() if as_lines else RunView(screen, verbose=verbose)
