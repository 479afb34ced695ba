"""Prints a checkup: one line per subject with its mark first, short if all is well, and the next command last.

Lines are plain ASCII around whatever the machine reported, wrapped to the terminal's width; a pipe gets one line per
subject. The JSON has the same fields.
"""

import json
import re
import textwrap
from dataclasses import dataclass

from holdfast.core.artifacts import to_plain
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Remedy
from holdfast.core.settings import in_script
from holdfast.core.text import plural
from holdfast.doctor.checkup import Checkup, Finding
from holdfast.doctor.native_findings import native_details
from holdfast.doctor.sections import Section
from holdfast.doctor.show_fact import show_fact
from holdfast.hazards import find_hazard

_BOXES = {"ok": "[ok]", "note": "[ok]", "warning": "[!]", "blocker": "[x]"}
_COLORS = {"ok": "32", "note": "32", "warning": "33", "blocker": "31"}
_SHOWN_REMEDIES = 2
_INDENT = 5
_JOINT = "\N{NO-BREAK SPACE}"  # in commands, until lines are wrapped
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # could control a terminal


@dataclass(frozen=True, slots=True)
class Style:
    """How lines look: the width to wrap to (None for no wrapping), color, and level of detail."""

    width: int | None = None
    color: bool = False
    verbose: bool = False


def render_section(section: Section, facts: MachineFacts, style: Style) -> list[str]:
    """One section of the facts; with `-v`, also each fact with its source."""
    lines = [line for text in section.sentences(facts) for line in _boxed("ok", text, style)]
    if style.verbose:
        for name in section.probes:
            if name in facts.sources:
                text = f"{name}: {show_fact(name, facts)}   ({facts.sources[name]})"
                lines += _folded(text, style, _INDENT, _INDENT + 2)
    return lines


def render_findings(checkup: Checkup, style: Style) -> list[str]:
    """The findings, worst first, and the unanswered questions. `-v` adds notes and native libraries."""
    lines: list[str] = []
    if style.verbose and checkup.native:
        lines += [_colored("ok", line, style) for line in native_details(checkup.native, style.width)]
    told: set[str] = set()
    for finding in checkup.findings:
        if finding.severity != "note" or style.verbose:
            lines += _finding(finding, style, told)
    for reason in checkup.unanswered:
        lines += _boxed("warning", f"not answered: {reason}", style)
    return lines


def render_close(checkup: Checkup, style: Style, healthy_next: str) -> list[str]:
    """The number of findings and the next command."""
    counts = [
        plural(checkup.count(severity), severity) for severity in ("blocker", "warning") if checkup.count(severity)
    ]
    if checkup.unanswered:
        counts.append(f"{plural(len(checkup.unanswered), 'question')} unanswered")
    text = ", ".join(counts) if counts else "no problems found"
    notes = checkup.count("note")
    if notes:
        text += f", {plural(notes, 'note')}" + (
            "" if style.verbose else " (-v shows them)" if notes > 1 else " (-v shows it)"
        )
    worst = next((finding for finding in checkup.findings if finding.severity != "note"), None)
    following = _next_command(worst) if worst else healthy_next
    return ["", *_folded(f"{text}. Next: {_whole(following)}", style, 0, 0)]


def render_json(checkup: Checkup) -> str:
    """One JSON object in ASCII, which every terminal and every reader accepts."""
    value = {"facts": checkup.facts, "findings": checkup.findings, "unanswered": checkup.unanswered}
    return json.dumps(to_plain(value), indent=2)


def _next_command(finding: Finding) -> str:
    if find_hazard(finding.slug):
        return f"holdfast explain {finding.slug}"
    return next((remedy.command for remedy in finding.remedies if remedy.command), "holdfast doctor -v")


def _finding(finding: Finding, style: Style, told: set[str]) -> list[str]:
    lines = _boxed(finding.severity, f"{finding.seen}   [{finding.slug}]", style)
    if finding.why and finding.why not in told:  # findings may share one reason
        lines += _folded(f"why   {finding.why}", style, _INDENT, _INDENT + 6)
        told.add(finding.why)
    shown = finding.remedies if style.verbose else _foremost(finding.remedies)
    for remedy in shown:
        lines += _folded(f"try   {_advice(remedy)}", style, _INDENT, _INDENT + 6)
    if len(shown) < len(finding.remedies):
        lines += _folded(f"      {len(finding.remedies) - len(shown)} more with -v", style, _INDENT, _INDENT + 6)
    if style.verbose and finding.sources:
        lines += _folded(f"read  {', '.join(finding.sources)}", style, _INDENT, _INDENT + 6)
    if find_hazard(finding.slug):
        lines += _folded(_whole(f"more  holdfast explain {finding.slug}"), style, _INDENT, _INDENT + 6)
    return lines


def _foremost(remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The first few remedies, at least one with a command: there is no run that could apply a change."""
    first = remedies[:_SHOWN_REMEDIES]
    typed = next((remedy for remedy in remedies if remedy.command), None)
    return first if typed is None or typed in first else (*first[:-1], typed)


def _advice(remedy: Remedy) -> str:
    details = [_whole(remedy.command)] if remedy.command else []
    if not remedy.command:
        details = in_script(remedy.change)
    details += [f"cost: {remedy.cost}"] if remedy.cost else []
    details += [] if remedy.keeps else ["changes what the model learns"]
    return remedy.title + (f"  ({'; '.join(details)})" if details else "")


def _boxed(kind: str, text: str, style: Style) -> list[str]:
    lines = _folded(f"{_BOXES[kind]:<4} {text}", style, 0, _INDENT)
    return [_colored(kind, lines[0], style), *lines[1:]]


def _colored(kind: str, line: str, style: Style) -> str:
    box = _BOXES[kind]
    return f"\x1b[{_COLORS[kind]}m{box}\x1b[0m{line[len(box) :]}" if style.color and line.startswith(box) else line


def _whole(command: str) -> str:
    """Keep a command on one line, so that it can be copied."""
    return command.replace(" ", _JOINT)


def _folded(text: str, style: Style, first: int, rest: int) -> list[str]:
    text = _CONTROL.sub("?", text)
    if style.width is None:
        return [" " * first + text.replace(_JOINT, " ")]
    lines = textwrap.wrap(
        text,
        max(style.width, 40),
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_JOINT, " ") for line in lines]
