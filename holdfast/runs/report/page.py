"""Writes `report.html`: one page with everything worth knowing about a run. No network, no script.

Reads: the run folder. Leaves: `report.html`, whole or not at all. Everything in the data is shown as text.
"""

import datetime
import os
from importlib.resources import files
from pathlib import Path

from holdfast import __version__
from holdfast.core.disk_space import cannot_put
from holdfast.core.runfolder import REPORT
from holdfast.runs.report.attempts_section import attempts_section
from holdfast.runs.report.data_section import data_section
from holdfast.runs.report.headline import everything, head, links, use_section
from holdfast.runs.report.html import Html, tag
from holdfast.runs.report.learning_section import learning_section
from holdfast.runs.report.plan_section import forecast_section, machine_section, plan_section
from holdfast.runs.report.result_section import mistakes_section, result_section
from holdfast.runs.state import RunState, read_whole_state
from holdfast.runs.wording import run_title


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
