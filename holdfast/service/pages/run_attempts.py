"""The attempts of a run for its page: what ended each, the proof, what was done about it, and the evidence to open."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.utils.safestring import SafeString, mark_safe

from holdfast.core.plan import Reason
from holdfast.core.records import to_record
from holdfast.core.runfolder import STACKS
from holdfast.core.text import human_seconds
from holdfast.runs.report.learning_section import memory_chart
from holdfast.runs.state import RunReader
from holdfast.runs.story import AttemptStory, Story
from holdfast.runs.timeline import outcome_of, progress_words, span_of
from holdfast.runs.wording import changes_text, reason_text
from holdfast.service.jobs.evidence_files import evidence_names
from holdfast.service.jobs.secrets import without_secrets
from holdfast.service.pages.run_words import moment

_SHOWN_ATTEMPTS = 20
_SHOWN_PROOF = 6
_STACK_BYTES, _TAIL_LINES = 12_000, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSight:
    """One attempt as the page shows it."""

    number: int
    state: str  # of the sign beside it
    rung: str
    sentence: str
    began: object  # datetime
    facts: tuple[str, ...]
    doubt: str
    cause: str
    slug: str
    proof: tuple[str, ...]
    remedy: str
    remedies: tuple[str, ...]
    sources: tuple[str, ...]
    files: tuple[str, ...]
    stack: str  # text of the first
    memory: SafeString  # a chart
    tail: str
    is_failed: bool


def attempts_of(story: Story, *, is_running: bool) -> tuple[AttemptSight, ...]:
    """The attempts, the newest first, as many as a page can bear."""
    newest = story.attempts[-1].number if story.attempts else 0
    return tuple(
        _sight(story, attempt, is_running=is_running and attempt.number == newest)
        for attempt in reversed(story.attempts[-_SHOWN_ATTEMPTS:])
    )


def _sight(story: Story, attempt: AttemptStory, *, is_running: bool) -> AttemptSight:
    outcome, sentence = outcome_of(attempt)
    if outcome == "open":
        outcome, sentence = ("running", "") if is_running else ("stopped", "it was cut off")
    span, diagnosis = span_of(attempt), attempt.diagnosis
    is_failed = outcome == "failed"
    files = tuple(evidence_names(story.folder, attempt.number))
    stacks = [name for name in files if name.startswith(f"{STACKS}/")]
    title = str(diagnosis.get("title") or "")
    return AttemptSight(
        number=attempt.number,
        state=outcome,
        rung=str(attempt.rung.get("rung") or ""),
        sentence="" if outcome == "finished" else sentence,  # its sign says so
        began=moment(span.start) if span else None,
        facts=tuple(_facts(attempt)),
        doubt={"proven": "Cause, proven", "likely": "Probably"}.get(str(diagnosis.get("confidence")), "Cause"),
        cause=title if diagnosis.get("slug") not in (None, "unknown") else "",
        slug=str(diagnosis.get("slug") or ""),
        proof=tuple(
            without_secrets(str(passage.get("text", "")))[:1000]
            for passage in (diagnosis.get("because") or ())[:_SHOWN_PROOF]
            if isinstance(passage, dict)
        ),
        remedy=_remedy(attempt) if is_failed else "",
        remedies=tuple(_remedies(diagnosis.get("remedies"))) if is_failed else (),
        sources=tuple(str(one) for one in diagnosis.get("sources") or ()) if is_failed else (),
        files=files,
        stack=_stack(attempt.folder / stacks[0]) if stacks and is_failed else "",
        memory=mark_safe(
            memory_chart(RunReader(story.folder).read(is_supervised=is_running), attempt.number) if is_failed else ""
        ),  # built by `tag`, which escapes
        tail=without_secrets(attempt.tail(_TAIL_LINES)) if is_failed else "",
        is_failed=is_failed,
    )


def _facts(attempt: AttemptStory) -> Iterator[str]:
    span = span_of(attempt)
    if span:
        yield f"ran {human_seconds(span.end - span.start)}"
    yield from progress_words(attempt)


def _remedy(attempt: AttemptStory) -> str:
    """What was done about it."""
    decision = attempt.decision
    rung = decision.get("rung")
    title = rung.get("title") if isinstance(rung, dict) else rung
    change = rung.get("change") if isinstance(rung, dict) else None
    because = reason_text(to_record(decision.get("reason"), Reason))
    said = title or {"again": "the same again", "stop": "nothing more was tried"}.get(str(decision.get("action")), "")
    words = f" [{changes_text(change)}]" if isinstance(change, dict) and change else ""
    return f"{said}{words}" + (f": {because}" if because else "") if said or because else ""


def _remedies(found: object) -> Iterator[str]:
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and one.get("title"):
            cost = f" (cost: {one['cost']})" if one.get("cost") else ""
            command = f": {one['command']}" if one.get("command") else ""
            yield f"{one['title']}{command}{cost}"


def _stack(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return without_secrets(file.read(_STACK_BYTES).decode(errors="replace"))
    except OSError:
        return ""
