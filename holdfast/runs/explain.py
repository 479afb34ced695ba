"""Explains a log, or a hazard, in words. The same fields make the text and the JSON.

Nothing from a log is executed or rendered as markup; it is printed as cleaned text, one line at a time.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from holdfast.core.biglog import read_log_file
from holdfast.core.errors import RequestError
from holdfast.core.evidence import Diagnosis, Passage
from holdfast.core.plan import Remedy
from holdfast.doctor.own_findings import OWN_FINDINGS
from holdfast.hazards import find_hazard
from holdfast.supervisor.diagnose import diagnose

_SHOWN_PASSAGES = 4
_SHOWN_CHARACTERS = 240


def explain_log(log: Path | IO[bytes], exit_status: str = "") -> Diagnosis:
    """Read a log and name the cause in it."""
    try:
        return diagnose(read_log_file(log, exit_status))
    except OSError as error:
        raise RequestError(f"the log cannot be read: {error.strerror}", seen=str(log)) from error


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """Write a diagnosis for a terminal: what happened, what was seen, what to try, where to read on."""
    return "\n".join(_diagnosis_lines(diagnosis))


def page_of(slug: str) -> dict[str, object] | None:
    """All that is known of a hazard, or of a finding that is `doctor`'s own; None when nothing has that name."""
    if hazard := find_hazard(slug):
        return hazard.page()
    return {"slug": slug, "kind": "finding", "story": OWN_FINDINGS[slug]} if slug in OWN_FINDINGS else None


def render_page(slug: str) -> str:
    """Write that page for a terminal."""
    hazard = find_hazard(slug)
    if hazard is None:
        return "\n".join([f"a finding of `holdfast doctor`   [{slug}]", "", *_filled(OWN_FINDINGS[slug])])
    lines = [f"{hazard.title}   [{hazard.slug}, {hazard.kind}]", "", *_filled(hazard.story), ""]
    lines += [line for remedy in hazard.remedies for line in _remedy_lines(remedy)]
    lines += _labelled("read", ", ".join(hazard.sources))
    lines += _labelled("lab", hazard.reproduced_by or "reported, not reproduced by us")
    return "\n".join(lines)


def _diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.slug == "unknown":
        yield f"[?] {diagnosis.title}"
        yield from _labelled("seen", diagnosis.note)
    else:
        doubt = "" if diagnosis.confidence == "proven" else "probably: "
        yield f"[x] {doubt}{diagnosis.title}   [{diagnosis.slug}, {diagnosis.confidence}]"
        for passage in diagnosis.because[:_SHOWN_PASSAGES]:
            yield from _labelled("seen", _quoted(passage))
        hazard = find_hazard(diagnosis.slug)
        if hazard:
            yield from _labelled("why", hazard.why)
    for remedy in diagnosis.remedies:
        yield from _remedy_lines(remedy)
    for note in diagnosis.harmless:
        yield from _labelled("note", note)
    if diagnosis.runner_up:
        yield from _labelled("or", f"{diagnosis.runner_up}, the next best explanation")
    if diagnosis.slug != "unknown":
        yield from _labelled("more", f"holdfast explain {diagnosis.slug}")


def _quoted(passage: Passage) -> str:
    where = f"line {passage.line}: " if passage.line else ""
    text = passage.text.strip()
    return where + (text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " ...")


def _remedy_lines(remedy: Remedy) -> list[str]:
    """A remedy's title, then what to type, then what it costs."""
    changes = (remedy.change or {}).items()
    variables = [f"export {name}={value}" for name, value in changes if name.isupper()]
    settings = [f"{name}={value}" for name, value in changes if not name.isupper()]
    lines = _labelled("try", remedy.title)
    lines += [f"           $ {command}" for command in (remedy.command, *variables) if command]
    if settings and not remedy.command and not variables:
        lines += _labelled("", f"  in Holdfast's plan: {', '.join(settings)}")
    if remedy.cost:
        lines += _labelled("", f"  cost: {remedy.cost}")
    if not remedy.keeps:
        lines += _labelled("", "  changes what is learned")
    return lines


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        100,
        initial_indent=f"  {label:<6} ",
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _filled(story: str) -> list[str]:
    """Fold the story's paragraphs: each of its headings starts a new one."""
    lines: list[str] = []
    for paragraph in story.replace("\nWhy:", "\n\nWhy:").replace("\nWhat we do:", "\n\nWhat we do:").split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), 100), ""]
    return lines[:-1]
