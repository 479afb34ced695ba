"""Explains a log, a run, or a hazard. Text and JSON are made of the same values.

Nothing from a log is executed or rendered as markup; it is printed as cleaned text, one line at a time.
"""

import io
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO

from holdfast.core.errors import RequestError
from holdfast.core.evidence import Diagnosis, Evidence, OrdinaryBug, Passage, Seen
from holdfast.core.plan import Remedy
from holdfast.core.records import ChildInfo, Outcome, read_record
from holdfast.core.runfolder import CHILD, EVIDENCE, REQUEST
from holdfast.core.settings import in_script
from holdfast.data.magic import name_of_binary
from holdfast.doctor.checkup import OWN_FINDINGS
from holdfast.hazards import Hazard, find_hazard
from holdfast.hazards.diagnose import diagnose
from holdfast.hazards.tracebacks import owner_of
from holdfast.hazards.version_api_rename import asked_name
from holdfast.logs.log_file import read_log_file
from holdfast.logs.raw_bytes import read_bytes
from holdfast.machine.installed_names import look_up, packages_folder
from holdfast.runs.bug_wording import bug_place, bug_reasons, installed_lines
from holdfast.runs.cause_wording import cause_sentence, outcome_text, with_own_command
from holdfast.runs.observation_wording import seen_text

_SHOWN_PASSAGES = 4
_SHOWN_CHARACTERS = 240

# What to do when the evidence is not enough. The first makes a bare signal print its stacks.
_MORE_EVIDENCE = (
    Remedy("let a crash print its stack", command="python -X faulthandler train.py 2>&1 | tee train.log"),
    Remedy("dump the stacks of a process that hangs", command="py-spy dump --native --pid PID > stacks.txt"),
    Remedy("pass how it ended", command="holdfast explain train.log --exit SIGSEGV   # or a code, or hang"),
)
_FINE = {
    "finished": "The run has finished.",
    "stopped": "The run was stopped on request; `holdfast resume` continues it.",
}
_UNPACK = {
    "bzip2-compressed data": "bzcat",
    "xz-compressed data": "xzcat",
    "zstd-compressed data": "zstdcat",
    "a ZIP archive": "unzip -p",
}
_HEAD_BYTES = 65_536
_JOINT = "\N{NO-BREAK SPACE}"  # keeps a name whole until lines are folded


def explain_log(log: Path | IO[bytes], exit_status: str = "") -> Diagnosis:
    """Read a log and name the cause in it."""
    try:
        with log.open("rb") if isinstance(log, Path) else nullcontext(log) as stream:
            read = _Remembering(stream)
            evidence = read_log_file(read, exit_status)
    except OSError as error:
        raise RequestError(
            f"the log cannot be read: {error.strerror}", found=str(log), try_next=("cat LOG | holdfast explain -",)
        ) from error
    diagnosis = diagnose(evidence)
    if diagnosis.slug != "unknown":
        return with_installed(diagnosis, evidence)
    _refuse_binary(str(log) if isinstance(log, Path) else "standard input", read.head)
    remedies = () if evidence.ended_well or diagnosis.bug else _MORE_EVIDENCE
    return replace(diagnosis, note=_about_text(evidence) or diagnosis.note, remedies=remedies)


def with_installed(diagnosis: Diagnosis, evidence: Evidence, program: Path | None = None) -> Diagnosis:
    """Version drift, with what the package has that the traceback names, where it is on this machine."""
    if diagnosis.slug != "version-api-rename" or not (asked := asked_name(evidence)):
        return diagnosis
    paths = [frame.module for raised in evidence.exceptions for frame in raised.frames]
    packages = packages_folder(
        [*paths, *re.findall(r"\(([^()\s]+[/\\](?:site|dist)-packages[/\\][^()\s]+)\)", evidence.errors.joined)]
    )
    if packages is None:
        return diagnosis
    if program is None:
        own = (Path(path).parent for path in paths if path and not owner_of(path))
        program = next((folder for folder in own if folder.is_absolute() and folder.is_dir()), None)
    return replace(diagnosis, installed=look_up(packages, *asked, program))


def is_run(folder: Path) -> bool:
    """True for the folder of a run, or of one attempt."""
    return find_attempt(folder) is not None or (folder / REQUEST).is_file()


def find_attempt(folder: Path) -> Path | None:
    """The attempt to explain: the last one that failed, else the last one; or the folder itself when it is one."""
    if any((folder / name).exists() for name in (EVIDENCE, CHILD)):
        return folder
    attempts = sorted(path for path in (folder / "attempts").glob("[0-9]*") if path.is_dir())
    failed = [attempt for attempt in attempts if (attempt / EVIDENCE).exists()]
    return next(reversed(failed or attempts), None)


def explain_run(folder: Path) -> tuple[Diagnosis, str]:
    """Name the cause of a run's last failure from all that was collected, with the cause in one sentence."""
    from holdfast.supervisor.cause import find_cause  # a log alone needs none of it
    from holdfast.supervisor.collect import read_attempt_evidence, read_collected

    attempt = find_attempt(folder)
    if attempt is None and (folder / REQUEST).is_file():
        note = "The run has not started training; `holdfast resume` continues it."
        return Diagnosis(slug="unknown", confidence="unknown", title="nothing failed", note=note), ""
    if attempt is None:
        raise RequestError(f"{folder} has no attempt of a run", try_next=("holdfast explain FOLDER/the.log",))
    outcome = read_record(attempt, Outcome)
    if words := _FINE.get(outcome.outcome if outcome else ""):
        if outcome and outcome.cause:
            words = f"{words} But {outcome_text(outcome)}: holdfast explain {outcome.cause.slug}."
        return Diagnosis(slug="unknown", confidence="unknown", title="nothing failed", note=words), ""
    evidence = read_attempt_evidence(attempt)
    child = read_record(attempt, ChildInfo)
    diagnosis = with_installed(diagnose(evidence), evidence, Path(child.cwd) if child and child.cwd else None)
    advised = with_own_command(diagnosis, child.command if child else ())
    cause = find_cause(evidence, diagnosis, read_collected(attempt))
    return advised, f"attempt {int(attempt.name)}: {cause_sentence(cause)}"


def render_diagnosis(diagnosis: Diagnosis, sentence: str = "") -> str:
    """Write a diagnosis for a terminal: what happened, what was seen, what to try, where to read more."""
    head = textwrap.wrap(sentence, _width(), break_long_words=False, break_on_hyphens=False) if sentence else []
    return "\n".join([*head, *_diagnosis_lines(diagnosis)])


def render_list(hazards: Iterable[Hazard]) -> str:
    """Write one line for each hazard."""
    lines = [f"{hazard.slug:<33} {hazard.title}" for hazard in hazards]
    return "\n".join([*lines, "", f"{len(lines)} hazards. Next: holdfast explain SLUG"])


def page_of(slug: str) -> dict[str, object] | None:
    """All that is known about a hazard, or about a finding of `doctor` alone; None for an unknown name."""
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
    lines += _labelled("lab", hazard.reproduced_by or "reported, not reproduced")
    return "\n".join(lines)


def _diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.slug == "unknown":
        yield from _headline(f"[?] {diagnosis.title}")
        yield from _labelled("seen", diagnosis.note)
        if diagnosis.bug:
            yield from _bug_lines(diagnosis.bug)
    else:
        doubt = "" if diagnosis.confidence == "proven" else "probably: "
        yield from _headline(f"[x] {doubt}{diagnosis.title}   [{diagnosis.slug}, {diagnosis.confidence}]")
        for seen in diagnosis.because[:_SHOWN_PASSAGES]:
            yield from _labelled("seen", _quoted(seen))
        hazard = find_hazard(diagnosis.slug)
        if diagnosis.installed:
            for line in installed_lines(diagnosis.installed):
                yield from _labelled("here", line)
        if hazard:
            yield from _labelled("why", hazard.why)
    for remedy in diagnosis.remedies:
        yield from _remedy_lines(remedy)
    for note in diagnosis.harmless:
        yield from _labelled("note", note)
    if diagnosis.runner_up:
        yield from _labelled("or", f"{diagnosis.runner_up}, the next most likely cause")
    if diagnosis.slug != "unknown":
        yield from _labelled("more", f"holdfast explain {diagnosis.slug}")


def _bug_lines(bug: OrdinaryBug) -> Iterator[str]:
    if place := bug_place(bug):
        yield from _labelled("at", place)
    for reason in bug_reasons(bug):
        yield from _labelled("maybe", reason)


def _quoted(seen: Seen) -> str:
    where = f"line {seen.line}: " if isinstance(seen, Passage) and seen.line else ""
    text = seen_text(seen)
    return where + (text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " ...")


class _Remembering:
    """Reads a stream that can be read only once, and keeps its beginning."""

    def __init__(self, stream: IO[bytes]):
        self._stream, self.head = stream, b""

    def read(self, size: int = -1, /) -> bytes:
        """Read more."""
        block = self._stream.read(size)
        self.head += block[: _HEAD_BYTES - len(self.head)]
        return block


def _refuse_binary(name: str, head: bytes) -> None:
    """Refuse a binary file. A log with holes of NUL bytes, or with backspaces of a progress bar, is text."""
    unpacked = next(read_bytes(io.BytesIO(head)), b"")
    kind = name_of_binary(unpacked.translate(None, b"\x00\x08"))
    if not kind:
        return
    unpack = _UNPACK.get(kind)
    raise RequestError(
        f"{name} is not text",
        found=f"{kind}; it starts with {unpacked[:8]!r}",
        try_next=(
            f"{unpack} {name} | holdfast explain -"
            if unpack
            else "pass what the run printed: a log, a Python or native stack, a macOS crash report or sample",
        ),
    )


def _about_text(evidence: Evidence) -> str:
    """What is wrong with the text itself; empty when nothing is."""
    return "" if evidence.log.joined.strip() else "The log is empty."


def _remedy_lines(remedy: Remedy) -> list[str]:
    """A remedy's title, command and cost."""
    changes = in_script(remedy.change)
    typed = [
        change for change in (remedy.command, *changes) if change.startswith("export ") or change == remedy.command
    ]
    lines = _labelled("try", remedy.title)
    lines += [f"           $ {command}" for command in typed if command]
    lines += [line for change in changes if change not in typed for line in _wrapped(change, " " * 11, 11)]
    if remedy.cost:
        lines += _wrapped(f"cost: {remedy.cost}", " " * 11, 11)
    if not remedy.keeps:
        lines += _wrapped("changes what the model learns", " " * 11, 11)
    return lines


def _headline(text: str) -> list[str]:
    title, bracket, named = text.partition("   [")
    whole = f"{title}{bracket}{named.replace(' ', _JOINT)}"
    return [line.replace(_JOINT, " ") for line in _wrapped(whole, "", 4)]


def _labelled(label: str, text: str) -> list[str]:
    return _wrapped(text, f"  {label:<6} ", 9)


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        _width(),
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _filled(story: str) -> list[str]:
    """Fold the story's paragraphs: each of its headings starts a new one."""
    lines: list[str] = []
    for paragraph in story.replace("\nWhy:", "\n\nWhy:").replace("\nWhat we do:", "\n\nWhat we do:").split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), _width()), ""]
    return lines[:-1]


def _width() -> int:
    """The width of the terminal, within 40 to 100 columns."""
    return max(40, min(100, shutil.get_terminal_size((100, 24)).columns - 1))
