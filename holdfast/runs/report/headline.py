"""The top of the page: how the run went, in one sentence and a few figures, and how to use the model."""

import shlex
from collections.abc import Iterator

from holdfast.core.scores import final_score, metric_name, metric_value
from holdfast.core.text import human_seconds, plural
from holdfast.runs.report.html import Html, join, section, tag
from holdfast.runs.state import RunState
from holdfast.runs.wording import headline, run_title

_LOOKS = {"finished": "good", "failed": "bad"}


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
    """The parts, one below the other."""
    return join(*(part for _, _, part in parts))


def _figures(state: RunState) -> Iterator[tuple[str, str]]:
    if score := final_score(state.records.metrics):
        split, name, value = score
        yield f"{metric_name(name)}, {split}", metric_value(name, value)
        other = state.records.metrics.get("validation")
        if split == "test" and isinstance(other, dict) and isinstance(other.get(name), int | float):
            yield f"{metric_name(name)}, validation", metric_value(name, float(other[name]))
    if state.step:
        is_part = state.steps and state.steps != state.step
        yield (f"steps of {state.steps:,}" if is_part else "steps"), f"{state.step:,}"
    if seconds := state.seconds:
        count = f", {plural(len(state.attempts), 'attempt')}" if len(state.attempts) > 1 else ""
        yield f"of training{count}", human_seconds(seconds)
    if state.records.dataset:
        yield "rows of data", f"{state.records.dataset.rows:,}"
    if device := state.settings.get("device"):
        yield f"device, {state.settings.get('precision', 'fp32')}", str(device)
