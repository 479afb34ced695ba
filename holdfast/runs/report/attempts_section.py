"""The timeline of attempts: when each ran, how far it came, why it ended and what was done about it."""

import datetime
from collections.abc import Iterator

from holdfast.core.events import BestCheckpointMissing, CheckpointFailed, CheckpointRejected, CheckpointSkipped, Event
from holdfast.runs.event_wording import event_lines
from holdfast.runs.report.html import Content, Html, details, join, section, tag
from holdfast.runs.report.learning_section import memory_chart
from holdfast.runs.state import AttemptState, RunState
from holdfast.runs.wording import (
    attempt_facts,
    attempt_text,
    cause_label,
    cause_text,
    decision_text,
    proof_lines,
    sentence,
)

_LOOKS = {"finished": "good", "died": "bad", "hung": "bad"}
_SHOWN_PROOF = 4
_PROBLEMS = (CheckpointRejected, CheckpointFailed, CheckpointSkipped, BestCheckpointMissing)


def attempts_section(state: RunState) -> Html:
    """Every attempt with a bar on the time scale of the run."""
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
        f", {attempt.remedy}: " if attempt.remedy else ": ",
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
    """The cause with its proof, and what was done about it."""
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
