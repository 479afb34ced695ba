"""Writes `report.html`: one page with everything worth knowing about a run. No network, no script.

Reads: the run folder. Leaves: `report.html`, whole or not at all. Everything in the data is shown as text.
"""

import datetime
import os
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from holdfast import __version__
from holdfast.core.disk_space import cannot_put
from holdfast.core.events import BestCheckpointMissing, CheckpointFailed, CheckpointRejected, CheckpointSkipped, Event
from holdfast.core.runfolder import REPORT
from holdfast.runs.event_wording import event_lines
from holdfast.runs.report.data_section import data_section
from holdfast.runs.report.html import Content, Html, details, join, section, tag
from holdfast.runs.report.learning_section import learning_section, memory_chart
from holdfast.runs.report.plan_section import forecast_section, machine_section, plan_section
from holdfast.runs.report.result_section import mistakes_section, result_section
from holdfast.runs.state import AttemptState, RunState, read_whole_state
from holdfast.runs.wording import (
    attempt_facts,
    attempt_text,
    cause_label,
    cause_text,
    decision_text,
    figures,
    headline,
    proof_lines,
    run_title,
    sentence,
)

_LOOKS = {"finished": "good", "failed": "bad", "died": "bad", "hung": "bad"}
_SHOWN_PROOF = 4
_PROBLEMS = (CheckpointRejected, CheckpointFailed, CheckpointSkipped, BestCheckpointMissing)


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run; returns its path."""
    page = render_report(read_whole_state(run))
    target = out or run / REPORT
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise cannot_put("report", target, error, "--out") from error
    return target


def render_report(state: RunState) -> str:
    """The page as text."""
    parts = [
        ("learning", "How it learned", learning_section(state)),
        ("result", "How good it is", result_section(state)),
        ("mistakes", "What it answers" if state.task == "causal" else "What it gets wrong", mistakes_section(state)),
        ("use" if state.has_model else "next", "Use it" if state.has_model else "What next", use_section(state)),
        ("attempts", "Attempts", attempts_section(state)),
        ("data", "The data", data_section(state)),
        ("plan", "The plan", plan_section(state)),
        ("forecast", "Forecast", forecast_section(state)),
        ("machine", "The machine", machine_section(state)),
    ]
    made = datetime.datetime.now().astimezone()
    footer = f"Written by Holdfast {__version__}, {made:%Y-%m-%d %H:%M %Z}, from {state.folder}"
    body = tag("body", head(state), links(parts), tag("main", everything(parts)), tag("footer", footer))
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            # Nothing may be fetched or run, whatever is in the data.
            tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
            tag("title", f"{run_title(state)} - Holdfast"),
            tag("style", Html(files("holdfast.runs.report").joinpath("report.css").read_text(encoding="utf-8"))),
        ),
        body,
        lang="en",
    )
    return f"<!doctype html>\n{page}\n"


# The top of the page


def head(state: RunState) -> Html:
    """Title, state, sentence and figures."""
    tiles = [tag("li", tag("b", value), tag("span", name)) for name, value in _figures(state)]
    return tag(
        "header",
        tag("span", state.state, class_=f"state {_LOOKS.get(state.state, 'warn')}"),
        tag("h1", run_title(state)),
        tag("p", headline(state), class_="lead"),
        tag("ul", tiles, class_="tiles", aria_label="Figures") if tiles else None,
    )


def use_section(state: RunState) -> Html:
    """The commands that come next."""
    run = shlex.quote(str(state.folder))
    if not state.has_model:
        if state.state in ("finished", "training", "proving", "preparing") or not state.records.request:
            return Html("")
        return section("What next", tag("pre", tag("code", f"holdfast resume {run}")), id_="next")
    example = {"causal": '"What should I ask first?"', "two-tower": '"what to look for"'}.get(state.task, '"a text"')
    lines = [f"holdfast predict {run} {example}", f"holdfast predict {run} FILE.csv --out answers.csv"]
    lines += [f"holdfast demo {run}", f"holdfast export {run} --to script"]
    code = {
        "classify": "from transformers import pipeline\npipeline('text-classification', {folder})('a text')",
        "causal": "from transformers import pipeline\npipeline('text-generation', {folder})('a text')",
        "two-tower": "from sentence_transformers import SentenceTransformer\n"
        "SentenceTransformer({folder}).encode(['a text'])",
    }.get(state.task, "")
    shown = code.format(folder=repr(str(state.folder / "model"))) if code else ""
    return section(
        "Use the model",
        tag("pre", tag("code", "\n".join(lines))),
        tag("p", "In Python, without Holdfast:", class_="meta") if shown else None,
        tag("pre", tag("code", shown)) if shown else None,
        id_="use",
    )


def links(parts: list[tuple[str, str, Html]]) -> Html:
    """Links to the parts that this page has."""
    return tag(
        "nav", [tag("a", title, href=f"#{name}") for name, title, part in parts if part], aria_label="On this page"
    )


def everything(parts: list[tuple[str, str, Html]]) -> Html:
    """The parts, one after another."""
    return join(*(part for _, _, part in parts))


def _figures(state: RunState) -> Iterator[tuple[str, str]]:
    yield from figures(state)
    if state.records.dataset:
        yield "rows of data", f"{state.records.dataset.rows:,}"
    if settings := state.settings:
        yield f"device, {settings.precision}", settings.device


# Attempts


def attempts_section(state: RunState) -> Html:
    """Every attempt, with a bar on the timeline of the run."""
    if not state.attempts:
        return Html("")
    first = min((one.started for one in state.attempts if one.started), default=0.0)
    last = max((one.ended for one in state.attempts if one.ended), default=first)
    output = state.attempts[-1].tail()
    return section(
        "Attempts",
        tag("ol", [_lane(attempt, first, (last - first) or 1.0) for attempt in state.attempts], class_="lanes"),
        memory_chart(state),
        details("Last lines of output", tag("pre", tag("code", output))) if output else None,
        id_="attempts",
    )


def _lane(attempt: AttemptState, first: float, whole: float) -> Html:
    look, bar = _LOOKS.get(attempt.outcome, "warn"), None
    if attempt.started and attempt.seconds is not None:
        left, width = (attempt.started - first) / whole * 100, attempt.seconds / whole * 100
        place = {"x": f"{min(left, 99.5):.2f}%", "width": f"{max(width, 0.5):.2f}%", "height": "100%"}
        bar = tag("rect", class_=look, **place)
    return tag(
        "li",
        tag("b", f"Attempt {attempt.number}"),
        f", {attempt.fallback}: " if attempt.fallback else ": ",
        tag("span", attempt_text(attempt), class_=look),
        tag("svg", bar, class_="lane", aria_hidden="true"),
        tag("div", "; ".join(_facts(attempt)), class_="meta"),
        _cause(attempt),
    )


def _facts(attempt: AttemptState) -> Iterator[str]:
    if attempt.started:
        yield f"{datetime.datetime.fromtimestamp(attempt.started).astimezone():%Y-%m-%d %H:%M:%S}"
    yield from attempt_facts(attempt)


def _cause(attempt: AttemptState) -> Html:
    """The cause with its proof, and what was done next."""
    lines: list[Content] = []
    if cause := cause_text(attempt):
        slug = attempt.slug if attempt.slug != "unknown" else None
        lines.append(
            tag(
                "p",
                tag("b", f"{cause_label(attempt)}: "),
                sentence(cause),
                join(" ", tag("code", slug)) if slug else None,
            )
        )
    if proof := proof_lines(attempt):
        lines.append(tag("ul", [tag("li", tag("code", text)) for text in proof[:_SHOWN_PROOF]], class_="notes"))
    if attempt.decision:
        lines.append(tag("p", tag("b", "Then: "), sentence(decision_text(attempt.decision))))
    if attempt.checkpoint_problems:
        lines.append(tag("ul", _problems(attempt.checkpoint_problems), class_="notes"))
    return join(*lines)


def _problems(events: tuple[Event, ...]) -> list[Html]:
    found = [line.text for event in events if isinstance(event, _PROBLEMS) for line in event_lines(event)]
    return [tag("li", text) for text in found[:_SHOWN_PROOF]]
