"""The timeline of attempts: when each ran, how far it came, what ended it and what was done about it."""

import datetime
import json
from collections.abc import Iterator

from holdfast.core.plan import Reason
from holdfast.core.records import to_record
from holdfast.core.text import human_seconds
from holdfast.runs.report.html import Content, Html, details, join, section, tag
from holdfast.runs.report.learning_section import memory_chart
from holdfast.runs.story import AttemptStory, Story
from holdfast.runs.timeline import outcome_of, progress_words, span_of
from holdfast.runs.wording import reason_text

_LOOKS = {"finished": "good", "failed": "bad", "stopped": "warn", "open": "warn"}
_SHOWN_PROOF = 4


def attempts_section(story: Story) -> Html:
    """Every attempt with a bar in the time of the whole run."""
    spans = {attempt.number: span for attempt in story.attempts if (span := span_of(attempt))}
    if not story.attempts:
        return Html("")
    first = min((span.start for span in spans.values()), default=0.0)
    whole = max((span.end for span in spans.values()), default=1.0) - first or 1.0
    lanes = []
    for attempt in story.attempts:
        span = spans.get(attempt.number)
        outcome, words = outcome_of(attempt)
        bar = None
        if span:
            left, width = (span.start - first) / whole * 100, (span.end - span.start) / whole * 100
            place = {"x": f"{min(left, 99.5):.2f}%", "width": f"{max(width, 0.5):.2f}%", "height": "100%"}
            bar = tag("rect", class_=_LOOKS[outcome], **place)
        lanes.append(
            tag(
                "li",
                tag("b", f"Attempt {attempt.number}"),
                f", {attempt.rung['rung']}: " if attempt.rung.get("rung") else ": ",
                tag("span", words, class_=_LOOKS[outcome]),
                tag("svg", bar, class_="lane", aria_hidden="true"),
                tag("div", "; ".join(_facts(attempt)), class_="meta"),
                _told(attempt),
            )
        )
    output = story.attempts[-1].tail()
    return section(
        "Attempts",
        tag("ol", lanes, class_="lanes"),
        memory_chart(story),
        details("Last lines of output", tag("pre", tag("code", output))) if output else None,
        id_="attempts",
    )


def _facts(attempt: AttemptStory) -> Iterator[str]:
    span = span_of(attempt)
    if span:
        began = datetime.datetime.fromtimestamp(span.start).astimezone()
        yield f"began {began:%Y-%m-%d %H:%M:%S}, {human_seconds(span.end - span.start)}"
    yield from progress_words(attempt)


def _told(attempt: AttemptStory) -> Html:
    """The cause with its proof, and the remedy that was taken."""
    diagnosis, decision = attempt.diagnosis, attempt.decision
    lines: list[Content] = []
    title, slug = diagnosis.get("title"), diagnosis.get("slug")
    named = join(" ", tag("code", slug)) if slug and slug != "unknown" else None
    if title and str(title) in str(attempt.outcome.get("sentence")):  # with its doubt, if there is any
        lines.append(tag("p", "More of this cause: ", tag("code", f"holdfast explain {slug}")) if named else None)
    elif title:
        doubt = {"proven": "Cause, proven: ", "likely": "Probably: "}.get(str(diagnosis.get("confidence")), "")
        lines.append(tag("p", tag("b", doubt), title, named))
    proof = [
        tag("li", f"line {passage['line']}: " if passage.get("line") else "", tag("code", passage.get("text", "")))
        for passage in diagnosis.get("because") or ()
        if isinstance(passage, dict)
    ]
    if proof:
        lines.append(tag("ul", proof[:_SHOWN_PROOF], class_="notes"))
    rung = decision.get("rung")
    remedy = rung.get("title") if isinstance(rung, dict) else rung
    because = reason_text(to_record(decision.get("reason"), Reason))
    if remedy or because:
        change = rung.get("change") if isinstance(rung, dict) else None
        said = remedy or {"again": "the same again", "stop": "nothing more"}.get(str(decision.get("action")), "")
        lines.append(
            tag(
                "p",
                tag("b", "Then: "),
                said,
                join(" ", tag("code", json.dumps(change))) if change else None,
                f" ({because})" if because else None,
            )
        )
    skipped = attempt.named("checkpoint damaged", "skipped checkpoint", "save failed", "best checkpoint is missing")
    notes = [
        tag("li", f"{event['event']}: {event.get('reason') or event.get('path') or event.get('step', '')}")
        for event in skipped[:_SHOWN_PROOF]
    ]
    return join(*lines, tag("ul", notes, class_="notes") if notes else None)
