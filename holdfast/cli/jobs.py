"""`holdfast jobs`: runs of a job service, from any machine. `submit` has the options of `train` that are no paths."""

import hashlib
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.cli.jobs_view import attempt_lines, follow, run_line, show_run
from holdfast.cli.server import Json, Server, find_server, is_in_the_open
from holdfast.cli.train import Grouped, is_given, setting_option
from holdfast.core.artifacts import to_json
from holdfast.core.env import service_home, service_variable
from holdfast.core.errors import FallbacksFailed, RequestError
from holdfast.core.request import REMOTE_FIELDS, read_toml
from holdfast.core.text import closest, human_bytes, plural

_STATES = ("queued", "running", "planned", "finished", "failed", "stopped")
_LOOK_SECONDS = 0.5


class InOrder(click.Group):
    """Lists commands in the order they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they stand in this file."""
        return list(self.commands)


@click.group(cls=InOrder)
def jobs() -> None:
    """Submit, watch and stop runs of a job service, from any machine.

    The server is HOLDFAST_SERVER, or --server after a command, otherwise the one on this machine; the key is
    HOLDFAST_TOKEN.
    """


def _to_server(command: Callable[..., None]) -> Callable[..., None]:
    for add in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
        click.option("--token", metavar="TOKEN", help="Key to the server; HOLDFAST_TOKEN is safer."),
        click.option("--server", "url", metavar="URL", help="Address of the service, such as https://holdfast.lab."),
    ):
        command = add(command)
    return command


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    config = click.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with any of these settings."
    )
    for field in reversed(list(REMOTE_FIELDS.values())):
        command = setting_option(field)(command)
    return config(command)


@jobs.command(cls=Grouped, short_help="Train on a file or on a dataset of the service.")
@click.argument("data", metavar="FILE_OR_DATASET")
@click.option("--name", default="", metavar="TEXT", help="Name of the run; otherwise the dataset's.")
@click.option("--plan", "plan_only", is_flag=True, help="Only plan and forecast; `holdfast jobs start` goes on.")
@click.option("--team", metavar="NAME", help="Team that may see it too.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, help="Those with more go first.")
@click.option("--watch", "and_watch", is_flag=True, help="Watch it until it has ended.")
@_with_settings
@_to_server
def submit(
    data: str, name: str, plan_only: bool, team: str | None, priority: int, and_watch: bool, url: str | None,
    token: str | None, as_json: bool, config: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Train on FILE_OR_DATASET: a file, which is uploaded, or the number or name of a dataset that is there."""
    server = _server(url, token)
    settings = _settings(config, given)
    dataset = _dataset(server, data, as_json=as_json)
    asked = {"dataset": dataset["id"], "settings": settings, "name": name, "priority": priority, "team": team}
    job = server.post("/api/jobs", {**asked, "goal": "plan" if plan_only else "model"})
    _told(job, as_json and not and_watch, f"run {job['id']} is queued; next: holdfast jobs watch {job['id']}")
    if and_watch:
        _watch(server, job["id"], as_json=as_json)


@jobs.command("list")
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="Only those; may be given several times.")
@click.option("--contains", metavar="TEXT", help="Only those with this in their name.")
@click.option("--owner", metavar="NAME", help="Only this person's.")
@click.option("--limit", type=click.IntRange(1, 200), default=30, show_default=True, help="So many at the most.")
@click.option("--cursor", type=int, metavar="NUMBER", help="Those after the page before.")
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
        click.echo(run_line(job))
    more = f"; more: holdfast jobs list --cursor {page['next']}" if page["next"] else ""
    click.echo(f"{plural(len(page['items']), 'run')}{more}")


@jobs.command(short_help="Say where a run stands, with every attempt and its cause.")
@click.argument("number", metavar="RUN", type=int)
@_to_server
def show(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Say where RUN stands: its state, phase, step, figures, and every attempt with its cause."""
    server = _server(url, token)
    job, attempts = server.get(f"/api/jobs/{number}"), server.get(f"/api/jobs/{number}/attempts")["items"]
    if as_json:
        click.echo(to_json({**job, "all_attempts": attempts}))
        return
    for line in show_run(job, attempts):
        click.echo(line)


@jobs.command(short_help="Follow a run until it has ended.")
@click.argument("number", metavar="RUN", type=int)
@_to_server
def watch(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Follow RUN until it has ended: a line whenever something changed. Ctrl-C leaves the run alone.

    Exit code 0: it has ended as asked. 4: it failed.
    """
    _watch(_server(url, token), number, as_json=as_json)


@jobs.command()
@click.argument("number", metavar="RUN", type=int)
@_to_server
def start(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Go on from RUN's plan to its model."""
    job = _server(url, token).post(f"/api/jobs/{number}/start")
    _told(job, as_json, f"run {number} is queued; next: holdfast jobs watch {number}")


@jobs.command(short_help="Ask a run to save and end.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--wait", is_flag=True, help="Come back when it has ended.")
@_to_server
def stop(number: int, wait: bool, url: str | None, token: str | None, as_json: bool) -> None:
    """Ask RUN to save and end; `holdfast jobs resume RUN` goes on from there."""
    server = _server(url, token)
    job = server.post(f"/api/jobs/{number}/stop")
    while wait and job["state"] == "running":
        time.sleep(_LOOK_SECONDS)
        job = server.get(f"/api/jobs/{number}")
    is_saving = job["state"] == "running"
    words = f"run {number} was asked to save and end" if is_saving else f"run {number} is {job['state']}"
    next_command = "download" if job["state"] == "finished" else "resume"
    _told(job, as_json, f"{words}; next: holdfast jobs {next_command} {number}")


@jobs.command(short_help="Go on with a run that was stopped or has failed.")
@click.argument("number", metavar="RUN", type=int)
@_to_server
def resume(number: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Go on with a RUN that was stopped or has failed, from its newest checkpoint."""
    job = _server(url, token).post(f"/api/jobs/{number}/resume")
    _told(job, as_json, f"run {number} is queued again; next: holdfast jobs watch {number}")


@jobs.command(cls=Grouped, short_help="Ask for a run again, with settings changed.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--name", default="", metavar="TEXT", help="Name of the new run; otherwise the same.")
@_with_settings
@_to_server
def retry(
    number: int, name: str, url: str | None, token: str | None, as_json: bool, config: Path | None, **given: Any
) -> None:
    """Ask for RUN again as a new run, with the settings given here changed."""
    asked = {"settings": _settings(config, given), "name": name}
    job = _server(url, token).post(f"/api/jobs/{number}/retry", asked)
    _told(job, as_json, f"run {job['id']} is queued; next: holdfast jobs watch {job['id']}")


@jobs.command()
@click.argument("number", metavar="RUN", type=int)
@click.option("--attempt", type=click.IntRange(1), help="Which attempt; otherwise the newest.")
@click.option("--lines", type=click.IntRange(1, 1000), default=50, show_default=True, help="So many at the most.")
@_to_server
def logs(number: int, attempt: int | None, lines: int, url: str | None, token: str | None, as_json: bool) -> None:
    """Print the end of what RUN wrote."""
    server = _server(url, token)
    found = server.get(f"/api/jobs/{number}/log", attempt=attempt, lines=lines)
    if as_json:
        click.echo(to_json(found))
        return
    click.echo(found["text"])
    if not sys.stdout.isatty():
        return
    for line in attempt_lines(server.get(f"/api/jobs/{number}/attempts")["items"]):
        click.echo(line)


@jobs.command(short_help="Get the finished model of a run, and its report.")
@click.argument("number", metavar="RUN", type=int)
@click.option("--to", "target", type=click.Path(path_type=Path), metavar="PATH", help="Folder, or a name with .zip.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Get the report too.")
@_to_server
def download(
    number: int, target: Path | None, report: Path | None, url: str | None, token: str | None, as_json: bool
) -> None:
    """Get the finished model of RUN as a folder, ready for `holdfast predict` or `from_pretrained`."""
    server = _server(url, token)
    job = server.get(f"/api/jobs/{number}")
    place = target or Path(f"run-{number}-model")
    if place.exists():
        raise RequestError(f"{place} is there already", try_next=("--to PATH, with a new name",))
    zipped = place if place.suffix == ".zip" else place.with_name(f".{place.name}.zip")
    count = _save(server, f"/api/jobs/{number}/model", zipped)
    if zipped != place:
        _unpack(zipped, place)
    if report:
        _save(server, f"/api/jobs/{number}/report", report)
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
    """Delete RUN and its folder; a model of it must have been deleted before."""
    server = _server(url, token)
    job = server.get(f"/api/jobs/{number}")
    if not yes:
        click.confirm(f"Delete run {number}, {job['name']}, with everything it has written?", abort=True, err=True)
    server.delete(f"/api/jobs/{number}")
    click.echo(to_json({"deleted": number}) if as_json else f"[ok] run {number} is deleted")


@jobs.command(short_help="On the server's machine: queue again what was lost.")
@click.option("--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Home of the service.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def cleanup(home: Path | None, as_json: bool) -> None:
    """On the server's machine: find runs that nobody works on any more and queue them again, as the service does."""
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
@click.option("--user", metavar="NAME", help="Whose; otherwise that of the only user.")
@click.option("--read-only", is_flag=True, help="It may look at everything and change nothing.")
@click.option("--days", type=click.IntRange(1, 3650), help="It ends after so many days.")
@click.option("--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Home of the service.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def token_(name: str, user: str | None, read_only: bool, days: int | None, home: Path | None, as_json: bool) -> None:
    """On the server's machine: make a token and print it, this once."""
    _on_this_machine(home)
    from holdfast.service.jobs.api_tokens import make_token_for

    text = make_token_for(user, name, may_write=not read_only, days=days)
    click.echo(to_json({"token": text}) if as_json else text)


def _server(url: str | None, token: str | None) -> Server:
    server = find_server(url, token)
    if is_in_the_open(server):
        click.echo(f"[!]  {server.url} is not encrypted: others on the way can read the token", err=True)
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
            f"no job service is kept in {kept}",
            try_next=("--home FOLDER, the one that holdfast serve was given", "holdfast serve, which makes one"),
        )
    from holdfast.service.child_process import set_up

    set_up()


def _settings(config: Path | None, given: dict[str, Any]) -> Json:
    """What was asked, in the service's words: a default of ours is not sent."""
    asked = {name: value for name, value in given.items() if value is not None and value != () and is_given(name)}
    return {**(read_toml(config) if config else {}), **asked}


def _told(job: Json, as_json: bool, words: str) -> None:
    click.echo(to_json(job) if as_json else f"[ok] {words}")


def _watch(server: Server, number: int, *, as_json: bool) -> None:
    job = follow(server, number, as_json=as_json, say=lambda words: click.echo(words, err=True))
    if job["state"] == "failed":
        raise SystemExit(FallbacksFailed.exit_code)


def _dataset(server: Server, data: str, *, as_json: bool) -> Json:
    path = Path(data)
    if path.is_file():
        return _uploaded(server, path, as_json=as_json)
    if path.is_dir():
        raise RequestError(
            f"{data} is a folder", seen="one file can be uploaded", try_next=(f"zip -r {path.name}.zip {data}",)
        )
    if data.isascii() and data.isdecimal():
        return server.get(f"/api/datasets/{data}")
    known = server.get("/api/datasets", contains=data, limit=200)["items"]
    named: list[Json] = [one for one in known if one["name"] == data]
    if named:
        return named[0]
    names = [one["name"] for one in server.get("/api/datasets", limit=200)["items"]]
    guess = closest(data, names)
    raise RequestError(
        f"there is no file and no dataset {data!r}", try_next=(f"did you mean {guess}?",) if guess else ()
    )


def _uploaded(server: Server, path: Path, *, as_json: bool) -> Json:
    """The file as a dataset; one that was sent before, and nobody has decided anything about, is used again."""
    say = (lambda words: None) if as_json else click.echo
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    same = server.get("/api/datasets", sha256=digest, state="ready")["items"]
    dataset: Json | None = next((one for one in same if not one["choices"]), None)
    if dataset:
        say(f"[ok] dataset {dataset['id']}, {dataset['name']}: sent before")
        return dataset
    say(f"[..] sending {path.name}, {human_bytes(path.stat().st_size)}")
    dataset = server.upload(path)
    while dataset["state"] == "surveying":
        time.sleep(_LOOK_SECONDS)
        dataset = server.get(f"/api/datasets/{dataset['id']}")
    if dataset["state"] == "refused":
        why = dataset["problem"] or {}
        raise RequestError(
            str(why.get("what") or f"{path.name} was refused"),
            seen=str(why.get("seen") or ""),
            try_next=tuple(map(str, why.get("try_next") or ())),
        )
    say(f"[ok] dataset {dataset['id']}, {dataset['name']}: surveyed")
    return dataset


def _save(server: Server, path: str, target: Path) -> int:
    """Write a download; the file is there only when it is whole."""
    draft = target.with_name(f".{target.name}.draft")
    count = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            for chunk in server.download(path):
                count += file.write(chunk)
        draft.replace(target)
    except OSError as error:
        raise RequestError(f"{target} cannot be written", seen=error.strerror or str(error)) from error
    finally:
        draft.unlink(missing_ok=True)
    return count


def _unpack(zipped: Path, folder: Path) -> None:
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        with zipfile.ZipFile(zipped) as packed:  # extractall keeps every name inside the folder
            packed.extractall(draft)
        draft.replace(folder)
    except zipfile.BadZipFile as error:
        raise RequestError(
            "the download is not whole", seen=str(error), try_next=("the same command again",)
        ) from error
    finally:
        zipped.unlink(missing_ok=True)
