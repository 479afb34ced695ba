"""What a person sees of a run in the foreground: the child's own output as it comes, and our lines between.

Our lines start with `holdfast:`. The child's bytes are passed on as they are, from the attempt's output.log: it writes
to a file and never waits for us.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.core.artifacts import to_plain
from holdfast.core.plan import Reason
from holdfast.core.records import to_record
from holdfast.core.runfolder import OUTPUT, attempt_folder
from holdfast.core.text import human_seconds
from holdfast.runs.wording import reason_text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CHUNK_BYTES = 1 << 16
_SHOWN_CHARACTERS = 300


class Foreground:
    """Prints a run's events and passes its output through."""

    def __init__(self, run: Path, write: Callable[[bytes], None], *, shows_output: bool = True, verbose: bool = False):
        self._run, self._write = run, write
        self._shows_output, self._verbose = shows_output, verbose
        self._file: int | None = None
        self._ends_line = True
        self.cause = ""  # of the newest failure, where it was shown whole

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        """Show one event."""
        if event == "attempt":
            part = details.get("folder")  # on a machine that does not lead
            self._follow(Path(str(part)) if part else attempt_folder(self._run, int(str(details["number"]))))
        self.pump()
        for line in _lines(event, details, self._verbose):
            self.say(line)
        if event == "ended":
            self.cause = str(details["sentence"]) if len(str(details["sentence"])) <= _SHOWN_CHARACTERS else ""

    def say(self, line: str) -> None:
        """Print one line of ours, on a line of its own."""
        self._write((b"" if self._ends_line else b"\n") + f"holdfast: {line}\n".encode(errors="backslashreplace"))
        self._ends_line = True

    def pump(self) -> None:
        """Pass on what the child has written since."""
        while self._file is not None and (chunk := os.read(self._file, _CHUNK_BYTES)):
            if self._shows_output:
                self._write(chunk)
                self._ends_line = chunk.endswith(b"\n")

    def _follow(self, attempt: Path) -> None:
        if self._file is not None:
            self.pump()
            os.close(self._file)
        self._file = os.open(attempt / OUTPUT, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def clean(text: object, characters: int = _SHOWN_CHARACTERS) -> str:
    """A log's text for a terminal: one line, no control characters, not endless."""
    flat = _CONTROL.sub("", " ".join(str(text).split()))
    return flat if len(flat) <= characters else flat[:characters] + "..."


def changes_words(changes: Mapping[str, object]) -> str:
    """Write changed settings for people: `loader_workers 0, threads 1`."""
    settings = [f"{name} {value}" for name, value in changes.items() if not name.isupper()]
    variables = [f"{name}={value}" for name, value in changes.items() if name.isupper()]
    return ", ".join([*settings, *variables])


def _lines(event: str, details: Mapping[str, object], verbose: bool) -> list[str]:
    show = _SHOWN.get(event)
    if show is None:
        return []
    said = show(details, verbose)
    return [said] if isinstance(said, str) and said else list(said) if said else []


def _why(details: Mapping[str, object]) -> str:
    return reason_text(to_record(to_plain(details.get("because")), Reason))


def _attempt(details: Mapping[str, object], verbose: bool) -> str:
    number = int(str(details["number"]))
    if details.get("rung"):
        cost = f"; cost: {details['cost']}" if details.get("cost") else ""
        return f"attempt {number}: {details['rung']} ({_why(details)}{cost})"
    if number > 1:
        return f"attempt {number}, the same plan again: {_why(details)}"
    return "attempt 1" if verbose else ""


def _quiet(details: Mapping[str, object], verbose: bool) -> str:
    step = f" at step {details['step']}" if details.get("step") else ""
    words = f": {clean(details['words'])}" if details.get("words") else ""
    return f"no progress for {human_seconds(float(str(details['seconds'])))} in phase {details['phase']}{step}{words}"


def _ended(details: Mapping[str, object], verbose: bool) -> str:
    noticed = details.get("noticed_after_seconds")
    seen = f", noticed after {human_seconds(float(str(noticed)))}" if noticed is not None else ""
    slug = f" [{details['slug']}]" if details.get("slug") not in (None, "unknown") else ""
    return f"attempt {details['number']} failed{seen}: {clean(details['sentence'])}{slug}"


def _remembered(details: Mapping[str, object], verbose: bool) -> str:
    changes = details["changes"]
    words = changes_words(changes) if isinstance(changes, Mapping) else ""
    return f"this finished here before with {words}; starting from that (holdfast memory --forget starts anew)"


def _phase(details: Mapping[str, object], verbose: bool) -> str:
    return f"phase {details['phase']}, step {details['step']}" if verbose else ""


def _told(details: Mapping[str, object], verbose: bool) -> str:
    return clean(details.get("words", ""))


def _stopping(details: Mapping[str, object], verbose: bool) -> str:
    seconds = human_seconds(float(str(details["seconds"])))
    return f"stopping: it may save and end within {seconds}; Ctrl-C again ends it at once"


def _resumed(details: Mapping[str, object], verbose: bool) -> str:
    where = f" from {Path(str(details['checkpoint'])).name}" if details.get("checkpoint") else ""
    return f"resumed{where}, step {details.get('step', '?')}"


def _from_the_beginning(details: Mapping[str, object], verbose: bool) -> str:
    return "no checkpoint of this run was found: it goes on from the beginning"


def _skipped(details: Mapping[str, object], verbose: bool) -> str:
    path = details.get("path") or details.get("folder") or "a checkpoint"
    return f"{Path(str(path)).name} is not whole and was passed over: {clean(details.get('reason', ''))}"


def _applied(details: Mapping[str, object], verbose: bool) -> str:
    return (
        f"applied: {details.get('change')} {details.get('value')} ({clean(details.get('how', ''))})" if verbose else ""
    )


def _weights(details: Mapping[str, object], verbose: bool) -> str:
    if details.get("is_nan"):
        return f"the weights are NaN since about step {details['step']}; the script goes on [nan-loss]"
    return f"the weights are numbers again at step {details['step']}"


def _save_skipped(details: Mapping[str, object], verbose: bool) -> str:
    return f"{Path(str(details.get('path'))).name} was not saved: {clean(details.get('reason', ''))}"


_SHOWN: dict[str, Callable[[Mapping[str, object], bool], str | list[str]]] = {
    "attempt": _attempt,
    "quiet": _quiet,
    "ended": _ended,
    "remembered": _remembered,
    "phase": _phase,
    "leftovers ended": _told,
    "left behind": _told,
    "waiting": _told,
    "leader gone": _told,
    "storage": _told,
    "disk full": _told,
    "stopping": _stopping,
    "resumed": _resumed,
    "from the beginning": _from_the_beginning,
    "skipped checkpoint": _skipped,
    "checkpoint damaged": _skipped,
    "applied": _applied,
    "save skipped": _save_skipped,
    "weights": _weights,
}


def closing_lines(
    state: str, sentence: str, seconds: float, run: str, remedies: tuple[str, ...], slug: str, cause: str = ""
) -> list[str]:
    """How a run ended, in a sentence, and where things lie; a `cause` that stands on the screen is not said again."""
    lines = [f"{clean(sentence.replace(f': {cause};', ';'), 600)}; {human_seconds(seconds)}"]
    if state == "failed":
        lines += [f"try    {clean(remedy)}" for remedy in remedies[:3]]
    if slug and slug != "unknown":
        lines.append(f"more   holdfast explain {slug}")
    if state == "stopped":
        lines.append(f"next   holdfast resume {run}")
    return [*lines, f"everything is in {run}"]
