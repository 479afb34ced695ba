"""`holdfast jobs`: runs of a job service, from any machine. `submit` has the options of `train` except paths."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from holdfast.cli.screen import Screen, cut, run_lines
from holdfast.cli.server import (
    Json,
    Server,
    error_of,
    find_dataset,
    find_server,
    is_in_the_open,
    patiently,
    save_download,
    unpack_model,
)
from holdfast.cli.setting_options import GroupedHelp, is_given, with_settings
from holdfast.core.artifacts import to_json
from holdfast.core.env import service_home, service_variable
from holdfast.core.errors import FallbacksFailed, RequestError, render_error
from holdfast.core.setting_values import read_toml
from holdfast.core.settings import OPEN_SETTINGS
from holdfast.core.text import human_bytes, human_seconds, plural
from holdfast.runs.state_values import from_snapshot
from holdfast.runs.wording import brief_text, clean, numbers_text

_STATES = ("queued", "running", "planned", "finished", "failed", "stopped")
_ENDED = ("planned", "finished", "failed", "stopped")
_MARKS = {"finished": "[ok]", "planned": "[ok]", "failed": "[x]", "stopped": "[--]"}
_ASK_SECONDS = 1.0


class InOrder(click.Group):
    """Lists commands in the order they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they are defined in this file."""
        return list(self.commands)


@click.group(cls=InOrder)
def jobs() -> None:
    """Submit, watch and stop runs of a job service, from any machine.

    The server is --server after a command, or HOLDFAST_SERVER, or this machine. The token is HOLDFAST_TOKEN.
    """


def _to_server(command: Callable[..., None]) -> Callable[..., None]:
    for add in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
        click.option("--token", metavar="TOKEN", help="Token for the server; HOLDFAST_TOKEN is safer."),
        click.option("--server", "url", metavar="URL", help="Address of the service, such as https://holdfast.lab."),
    ):
        command = add(command)
    return command


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    config = click.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with any of these settings."
    )
    return config(with_settings(OPEN_SETTINGS)(command))


@jobs.command(cls=GroupedHelp, short_help="Train on a file or on a dataset of the service.")
@click.argument("data", metavar="FILE_OR_DATASET")
@click.option("--name", default="", metavar="TEXT", help="Name of the run; default: the dataset's name.")
@click.option("--plan", "plan_only", is_flag=True, help="Only plan and forecast; `holdfast jobs start` continues.")
@click.option("--team", metavar="NAME", help="Team that may also see the run.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, help="Runs with a higher priority start first.")
@click.option("--watch", "and_watch", is_flag=True, help="Watch the run until it ends.")
@_with_settings
@_to_server
def submit(
    data: str, name: str, plan_only: bool, team: str | None, priority: int, and_watch: bool, url: str | None,
    token: str | None, as_json: bool, config: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Train on FILE_OR_DATASET: a file to upload, or the number or name of an existing dataset."""
    server = _server(url, token)
    settings = _settings(config, given)
    dataset = find_dataset(server, data, as_json=as_json)
    asked = {"dataset": dataset["id"], "settings": settings, "name": name, "priority": priority, "team": team}
    job = server.post("/api/jobs", {**asked, "goal": "plan" if plan_only else "model"})
    _told(job, as_json and not and_watch, f"run {job['id']} is queued; next: holdfast jobs watch {job['id']}")
    if and_watch:
        _watch(server, job["id"], as_json=as_json)


@jobs.command("list")
@click.option(
    "--state", type=click.Choice(_STATES), multiple=True, help="Only runs in this state; may be given several times."
)
@click.option("--contains", metavar="TEXT", help="Only runs with this text in their name.")
@click.option("--owner", metavar="NAME", help="Only runs of this user.")
@click.option("--limit", type=click.IntRange(1, 200), default=30, show_default=True, help="Maximum number of runs.")
@click.option("--cursor", type=int, metavar="NUMBER", help="Where to continue, as printed below the previous page.")
@_to_server
def list_(
    state: tuple[str, ...], contains: str | None, owner: str | None, limit: int, cursor: int | None, url: str | None,
    token: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List runs, the newest first."""
    server = _server(url, token)
    page = server.get("/api/jobs", state=state, contains=contains, owner=owner, limit=limit, cursor=cursor)
    if as_json:
        click.echo(to_json(page))
        return
    for job in page["items"]:
        click.echo(_row(job))
    more = f"; more: holdfast jobs list --cursor {page['next']}" if page["next"] else ""
    click.echo(f"{plural(len(page['items']), 'run')}{more}")


@jobs.command(short_help="Show the state of a run, and every attempt with its cause.")
@click.argument("number", metavar="RUN", type=int)
@_to_server
def show(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Show the state of RUN: phase, step, metrics, and every attempt with its cause."""
    server = _server(url, token)
    job = server.get(f"/api/jobs/{number}")
    if as_json:
        click.echo(to_json(job))
        return
    for line in _details(job):
        click.echo(line)


@jobs.command(short_help="Watch a run until it ends.")
@click.argument("number", metavar="RUN", type=int)
@_to_server
def watch(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Watch RUN until it ends. Press Ctrl-C to quit; the run continues.

    Exit code 0: the run finished, was planned or was stopped. 4: it failed.
    """
    _watch(_server(url, token), number, as_json=as_json)


@jobs.command()
@click.argument("number", metavar="RUN", type=int)
@_to_server
def start(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Train the RUN that was planned."""
    job = _server(url, token).post(f"/api/jobs/{number}/start")
    _told(job, as_json, f"run {number} is queued; next: holdfast jobs watch {number}")


@jobs.command(short_help="Ask a run to save and end.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--wait", is_flag=True, help="Return only after the run has ended.")
@_to_server
def stop(number: int, wait: bool, url: str | None, token: str | None, as_json: bool) -> None:
    """Ask RUN to save and end; `holdfast jobs resume RUN` continues from there."""
    server = _server(url, token)
    job = server.post(f"/api/jobs/{number}/stop")
    while wait and job["state"] == "running":
        time.sleep(_ASK_SECONDS)
        job = server.get(f"/api/jobs/{number}")
    is_saving = job["state"] == "running"
    words = f"run {number} was asked to save and end" if is_saving else f"run {number} is {job['state']}"
    next_command = "download" if job["state"] == "finished" else "resume"
    _told(job, as_json, f"{words}; next: holdfast jobs {next_command} {number}")


@jobs.command(short_help="Continue a run that was stopped or has failed.")
@click.argument("number", metavar="RUN", type=int)
@_to_server
def resume(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Continue a RUN that was stopped or has failed, from its newest checkpoint."""
    job = _server(url, token).post(f"/api/jobs/{number}/resume")
    _told(job, as_json, f"run {number} is queued again; next: holdfast jobs watch {number}")


@jobs.command(cls=GroupedHelp, short_help="Repeat a run with other settings.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--name", default="", metavar="TEXT", help="Name of the new run; default: the same name.")
@_with_settings
@_to_server
def retry(
    number: int, name: str, url: str | None, token: str | None, as_json: bool, config: Path | None, **given: Any
) -> None:
    """Repeat RUN as a new run, with these settings changed."""
    asked = {"settings": _settings(config, given), "name": name}
    job = _server(url, token).post(f"/api/jobs/{number}/retry", asked)
    _told(job, as_json, f"run {job['id']} is queued; next: holdfast jobs watch {job['id']}")


@jobs.command()
@click.argument("number", metavar="RUN", type=int)
@click.option("--attempt", type=click.IntRange(1), help="Which attempt; default: the newest.")
@click.option("--lines", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of lines.")
@_to_server
def logs(number: int, attempt: int | None, lines: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Print the last lines of RUN's output."""
    server = _server(url, token)
    found = server.get(f"/api/jobs/{number}/log", attempt=attempt, lines=lines)
    if as_json:
        click.echo(to_json(found))
        return
    click.echo(found["text"])


@jobs.command(short_help="Get the finished model of a run, and its report.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--to", "target", type=click.Path(path_type=Path), metavar="PATH", help="Folder, or a name with .zip.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Also get the report.")
@_to_server
def download(
    number: int, target: Path | None, report: Path | None, url: str | None, token: str | None, as_json: bool
) -> None:
    """Get the finished model of RUN as a folder, ready for `holdfast predict` or `from_pretrained`."""
    server = _server(url, token)
    job = server.get(f"/api/jobs/{number}")
    place = target or Path(f"run-{number}-model")
    if place.exists():
        raise RequestError(f"{place} already exists", try_next=("--to PATH, with a new name",))
    zipped = place if place.suffix == ".zip" else place.with_name(f".{place.name}.zip")
    count = save_download(server, f"/api/jobs/{number}/model", zipped)
    if zipped != place:
        unpack_model(zipped, place)
    if report:
        save_download(server, f"/api/jobs/{number}/report", report)
    said = {"run": number, "model": str(place), "bytes": count, "report": str(report) if report else None}
    if as_json:
        click.echo(to_json(said))
        return
    click.echo(f"[ok] {place}: {job['task']}, {human_bytes(count)}" + (f"; report: {report}" if report else ""))


@jobs.command(short_help="Delete a run and its folder.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_to_server
def delete(number: int, yes: bool, url: str | None, token: str | None, as_json: bool) -> None:
    """Delete RUN and its folder. Delete its model first."""
    server = _server(url, token)
    job = server.get(f"/api/jobs/{number}")
    if not yes:
        click.confirm(f"Delete run {number}, {job['name']}, with everything it has written?", abort=True, err=True)
    server.delete(f"/api/jobs/{number}")
    click.echo(to_json({"deleted": number}) if as_json else f"[ok] run {number} is deleted")


@jobs.command(short_help="On the server's machine: requeue lost runs.")
@click.option("--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Home of the service.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def cleanup(home: Path | None, as_json: bool) -> None:
    """On the server's machine: find runs without a worker and queue them again, as the service does."""
    _on_this_machine(home)
    from holdfast.service.jobs.cleanup import clean_up

    lines = clean_up()
    if as_json:
        click.echo(to_json({"done": lines}))
        return
    for line in lines:
        click.echo(f"[ok] {line}")
    click.echo(f"{plural(len(lines), 'thing')} to clean up")


@jobs.command("token", short_help="On the server's machine: make a token and print it.")
@click.argument("name", default="command line")
@click.option("--user", metavar="NAME", help="Owner of the token; default: the only user.")
@click.option(
    "--scope",
    type=click.Choice(["read", "predict", "submit", "admin"]),
    default="submit",
    help="What the token may do: read; also ask models; also submit and change runs; also manage the account.",
)
@click.option("--days", type=click.IntRange(1, 3650), help="The token expires after this many days.")
@click.option("--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Home of the service.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def token_(name: str, user: str | None, scope: str, days: int | None, home: Path | None, as_json: bool) -> None:
    """On the server's machine: make a token and print it. It is shown only once."""
    _on_this_machine(home)
    from holdfast.service.jobs.api_tokens import make_token_for

    text = make_token_for(user, name, scope=scope, days=days)
    click.echo(to_json({"token": text}) if as_json else text)


def _server(url: str | None, token: str | None) -> Server:
    server = find_server(url, token)
    if is_in_the_open(server):
        click.echo(f"[!]  {server.url} is not encrypted: others on the network can read the token", err=True)
    return server


def _on_this_machine(home: Path | None) -> None:
    import os

    from holdfast.cli.serve import require_packages

    if home:
        os.environ["HOLDFAST_HOME"] = str(home.expanduser().absolute())
    require_packages()
    kept = service_home()
    if not service_variable("DATABASE_URL") and not (kept / "service.sqlite3").exists():
        raise RequestError(
            f"there is no job service in {kept}",
            try_next=("--home FOLDER, as given to holdfast serve", "holdfast serve, which creates one"),
        )
    from holdfast.service.child_process import set_up

    set_up()


def _settings(config: Path | None, given: dict[str, Any]) -> Json:
    """The given settings, by the service's names; defaults are not sent."""
    asked = {name: value for name, value in given.items() if value is not None and value != () and is_given(name)}
    return {**(read_toml(config) if config else {}), **asked}


def _told(job: Json, as_json: bool, words: str) -> None:
    click.echo(to_json(job) if as_json else f"[ok] {words}")


def _watch(server: Server, number: int, *, as_json: bool) -> None:
    """Show a run until it has ended, even across a restart of the server."""
    screen, before = Screen(), ""
    while True:
        job: Json = patiently(
            lambda: server.get(f"/api/jobs/{number}"), lambda text: click.echo(f"[!]  {text}", err=True)
        )
        has_ended = job["state"] in _ENDED
        line = json.dumps(_without_clocks(job), ensure_ascii=False) if as_json else "" if has_ended else _now(job)
        if screen.is_live and not as_json and not has_ended:
            size = shutil.get_terminal_size()
            screen.move([*_shown(job, size.columns - 1, size.lines - 2), "", "Ctrl-C: quit (the run continues)"])
        elif line and line != before:
            click.echo(line)
            before = line
        if has_ended:
            break
        time.sleep(_ASK_SECONDS)
    screen.erase()
    if not as_json:
        for line in (*_shown(job, 10_000), *_closing(job)):
            click.echo(line)
    if job["state"] == "failed":
        raise SystemExit(FallbacksFailed.exit_code)


def _row(job: Json) -> str:
    """A run in a list."""
    name = cut(clean(job["name"]), 32)
    text = clean(job["sentence"], 60) if job["state"] == "failed" else _numbers(job)
    return f"{_mark(job):<4} {job['id']:>5}  {job['state']:<9} {name:<32} {text}{_left(job)}".rstrip()


def _details(job: Json) -> Iterator[str]:
    """A run with its attempts."""
    yield from _shown(job, 10_000)
    silent = f", silent since {since}" if (since := job.get("silent_since")) else ""
    about = [
        ("owner", job["owner"] + (f", team {job['team']}" if job["team"] else "")),
        ("worker", (job["worker"] or "") + silent),
        ("settings", ", ".join(f"{name} {value}" for name, value in job["settings"].items())),
        ("left", human_seconds(job["eta_seconds"]) if job["eta_seconds"] is not None else ""),
    ]
    yield from (f"     {name:<9} {clean(text, 600)}" for name, text in about if text)


def _shown(job: Json, columns: int, rows: int | None = None) -> list[str]:
    """A run as `holdfast watch` shows one of this machine; only its place in the queue is the service's own."""
    title, state = f"{_mark(job)} run {job['id']}, {clean(job['name'], 200)}", from_snapshot(job["run"])
    if state is None or job["state"] in ("queued", "planned"):
        return [cut(f"{title}: {_now(job)}", columns)]
    return run_lines(state, columns, rows, title=f"{title}: stopping" if _is_stopping(job) else title)


def _closing(job: Json) -> Iterator[str]:
    if job["error"]:
        yield render_error(error_of(job["error"]))
    following = {"finished": "download", "planned": "start", "stopped": "resume", "failed": "logs"}
    yield f"next: holdfast jobs {following[job['state']]} {job['id']}"


def _now(job: Json) -> str:
    """A run in a few words, without what changes all the time."""
    state = from_snapshot(job["run"]) if job["state"] == "running" else None
    if state and not _is_stopping(job):
        return brief_text(state)
    return ", ".join(filter(None, ("stopping" if _is_stopping(job) else job["state"], _numbers(job))))


def _is_stopping(job: Json) -> bool:
    return job["state"] == "running" and bool(job["stop_asked"])


def _mark(job: Json) -> str:
    return _MARKS.get(job["state"], "[..]")


def _numbers(job: Json) -> str:
    return numbers_text(step=job["step"], steps=job["steps"], loss=job["loss"])


def _left(job: Json) -> str:
    return f", {human_seconds(job['eta_seconds'])} left" if job["eta_seconds"] is not None else ""


def _without_clocks(job: Json) -> Json:
    """A run without what changes while nothing happens."""
    clocks = {"activity": None, "resident_bytes": None, "peak_bytes": None}
    run = job["run"]
    if run:
        run = {**run, "curves": None, "attempts": [{**attempt, **clocks} for attempt in run["attempts"]]}
    return {**job, "eta_seconds": None, "run": run}
