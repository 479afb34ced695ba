"""Says with which words a program ended itself: `sys.exit` or a SystemExit, which leave no traceback.

Python tells nobody of a SystemExit that was raised without `sys.exit`; there only the last line that was printed is
known, which mostly is its message. Reads: events.jsonl and output.log of the attempt.
"""

from collections.abc import Iterator
from pathlib import Path

from holdfast.core.events import find_last_event
from holdfast.core.loglines import clean_lines
from holdfast.core.runfolder import EVENTS, OUTPUT

_TAIL_BYTES = 16_384


def exit_lines(attempt: Path, root_pid: int) -> Iterator[str]:
    """The words of a program that ended with a code of its own, as a line of evidence; none when it raised an error."""
    told = find_last_event(attempt / EVENTS, "program ended") or {}
    has_left = find_last_event(attempt / EVENTS, "exit handlers ended")  # or a handler took another way out
    if told.get("pid") != root_pid or told.get("has_raised") or not has_left:
        return
    if message := " ".join(str(told.get("message") or "").split()):
        yield f"its message: {message}"
    elif last := _last_line(attempt / OUTPUT):
        yield f"its last line: {last}"


def _last_line(output: Path) -> str:
    try:
        with output.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for _, line in clean_lines(enumerate(text.split("\n"))) if line.strip()]
    return lines[-1] if lines else ""
