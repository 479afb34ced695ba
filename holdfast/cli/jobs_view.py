"""How runs of a job service are printed: one line each, as `holdfast watch` and `holdfast status` have them."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from holdfast.cli.server import Json, Server, patiently
from holdfast.core.text import human_seconds, plural
from holdfast.runs.view import clean

ENDED = ("planned", "finished", "failed", "stopped")
MARKS = {"finished": "[ok]", "planned": "[ok]", "failed": "[x]", "stopped": "[--]", "running": "[..]", "queued": "[..]"}
_ATTEMPT_MARKS = {"finished": "[ok]", "running": "[..]", "stopped": "[--]", "interrupted": "[--]"}
_ASK_SECONDS = 1.0


def run_line(job: Json) -> str:
    """A run in a list."""
    mark, name = MARKS.get(job["state"], "[..]"), _cut(job["name"], 32)
    return f"{mark:<4} {job['id']:>5}  {job['state']:<9} {name:<32} {_where(job)}".rstrip()


def show_run(job: Json, attempts: list[Json]) -> Iterator[str]:
    """A run with its attempts."""
    yield f"{MARKS.get(job['state'], '[..]')} run {job['id']}, {clean(job['name'], 200)}: {_now(job)}"
    about = [
        ("owner", job["owner"] + (f", team {job['team']}" if job["team"] else "")),
        (
            "worker",
            (job["worker"] or "") + (f", no word since {silent}" if (silent := job.get("silent_since")) else ""),
        ),
        ("settings", ", ".join(f"{name} {value}" for name, value in job["settings"].items())),
        ("figures", _figures(job["metrics"])),
        ("left", human_seconds(job["eta_seconds"]) if job["eta_seconds"] is not None else ""),
    ]
    yield from (f"     {name:<9} {clean(text, 600)}" for name, text in about if text)
    yield from attempt_lines(attempts)
    if job["sentence"]:
        yield clean(job["sentence"], 2000)


def attempt_lines(attempts: list[Json]) -> Iterator[str]:
    """Each attempt with its cause."""
    for one in attempts:
        rung = f": {one['rung']}" if one["rung"] else ""
        noticed = one["noticed_after_seconds"]
        seen = f", noticed after {human_seconds(noticed)}" if noticed else ""
        mark = _ATTEMPT_MARKS.get(one["outcome"], "[x]")
        yield f"{mark} attempt {one['number']}{rung}; {one['outcome']} at step {one['step_reached']}{seen}"
        if one["sentence"] and one["outcome"] not in _ATTEMPT_MARKS:
            slug = f" [{one['slug']}]" if one["slug"] not in (None, "unknown") else ""
            yield f"     {clean(one['sentence'], 600)}{slug}"


def follow(server: Server, number: int, *, as_json: bool, say: Callable[[str], None]) -> Json:
    """Print a line whenever something changed, until the run has ended; also over a restart of the server."""
    told = ""
    while True:
        job: Json = patiently(lambda: server.get(f"/api/jobs/{number}"), lambda words: say(f"[!]  {words}"))
        line = json.dumps(_without_clocks(job), ensure_ascii=False) if as_json else _now(job)
        if line != told:
            click.echo(line)
            told = line
        if job["state"] in ENDED:
            break
        time.sleep(_ASK_SECONDS)
    if not as_json:
        attempts = server.get(f"/api/jobs/{number}/attempts")["items"]
        for line in (*attempt_lines(attempts), *_closing(job)):
            click.echo(line)
    return job


def _closing(job: Json) -> Iterator[str]:
    number = job["id"]
    if job["error"]:
        yield f"error: {clean(job['error'].get('what', ''), 600)}"
        if job["error"].get("seen"):
            yield f"  seen   {clean(job['error']['seen'], 600)}"
    elif job["sentence"]:
        yield clean(job["sentence"], 2000)
    if figures := _figures(job["metrics"]):
        yield f"     {figures}"
    following = {"finished": "download", "planned": "start", "stopped": "resume", "failed": "logs"}
    yield f"next: holdfast jobs {following[job['state']]} {number}"


def _now(job: Json) -> str:
    live = job.get("live") or job
    parts = [job["state"], live["phase"] if job["state"] == "running" else ""]
    parts.append("stop asked" if job["stop_asked"] and job["state"] == "running" else "")
    parts.append(f"step {live['step']}" + (f"/{live['steps']}" if live["steps"] else "") if live["step"] else "")
    parts.append(f"loss {live['loss']:.4g}" if live["loss"] is not None else "")
    parts.append(plural(job["attempts"], "attempt") if job["attempts"] else "")
    return ", ".join(part for part in parts if part)


def _where(job: Json) -> str:
    state, rest = _now(job).partition(", ")[::2]
    words = clean(job["sentence"], 60) if job["state"] in ("failed",) else rest
    left = f", {human_seconds(job['eta_seconds'])} left" if job["eta_seconds"] is not None else ""
    return words + left if state else ""


def _figures(metrics: Json) -> str:
    found = []
    for split, figures in metrics.items():
        pairs = figures.items() if isinstance(figures, dict) else ()
        found += [f"{split} {name} {value:.4g}" for name, value in pairs if _is_number(value)]
    return ", ".join(found[:6])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_clocks(job: Json) -> Json:
    """A run without what changes while nothing happens."""
    live = (
        {**job["live"], "eta_seconds": None, "resident_bytes": None, "steps_per_second": None} if job["live"] else None
    )
    return {**job, "eta_seconds": None, "live": live}


def _cut(text: str, width: int) -> str:
    shown = clean(text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"
