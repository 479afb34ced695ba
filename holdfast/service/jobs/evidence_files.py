"""The files of an attempt that users may read as text; any other name is treated as missing."""

import re
from pathlib import Path

from holdfast.core.runfolder import (
    DECISION,
    DIAGNOSIS,
    EVENTS,
    EVIDENCE,
    OUTCOME,
    OUTPUT,
    SAMPLES,
    STACKS,
    START,
    attempt_folder,
)

_FILES = (EVIDENCE, DIAGNOSIS, DECISION, OUTCOME, START, EVENTS, SAMPLES, OUTPUT)
_STACK_NAME = re.compile(r"[a-z]{1,20}-[0-9]{1,10}\.txt")
_MOST_STACKS = 12
_MOST_BYTES = 256 * 1024
_MOST_ATTEMPTS = 9999
# A report contains its own style and shows data as text. If mark-up ever slips through, it still can do nothing.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"


def evidence_names(run: Path, number: int) -> list[str]:
    """The readable files of an attempt, then its stacks, Python stacks first."""
    folder = attempt_folder(run, number)
    try:
        found = [path for path in (folder / STACKS).iterdir() if _STACK_NAME.fullmatch(path.name)]
        stacks = [path.name for path in found if path.stat().st_size]
    except OSError:
        stacks = []
    stacks.sort(key=lambda name: (not name.startswith("python"), name))
    files = [name for name in _FILES if (folder / name).is_file()]
    return files + [f"{STACKS}/{name}" for name in stacks[:_MOST_STACKS]]


def evidence_file(run: Path, number: int, name: str) -> Path | None:
    """The path of such a file; None for any other name, or one that leads out of the run folder."""
    is_stack = name.startswith(f"{STACKS}/") and _STACK_NAME.fullmatch(name.removeprefix(f"{STACKS}/"))
    if (name not in _FILES and not is_stack) or number > _MOST_ATTEMPTS:
        return None
    path = attempt_folder(run, number) / name
    return path if path.is_file() and path.resolve().is_relative_to(run.resolve()) else None


def read_end(path: Path) -> str:
    """The end of a file as text."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return text if size <= _MOST_BYTES else text.partition("\n")[2]  # the first line is incomplete
