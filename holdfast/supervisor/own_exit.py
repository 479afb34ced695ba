"""Says with which words a program ended itself: `sys.exit` or a SystemExit, which leave no traceback.

Python tells nobody of a SystemExit that was raised without `sys.exit`; there only the last line that was printed before
the exit handlers is known, which mostly is its message. A message that Python has not printed was of an exit that the
program caught. Reads: events.jsonl and output.log of the attempt.
"""

from collections.abc import Iterator
from pathlib import Path

from holdfast.core.old_events import find_last_event
from holdfast.core.runfolder import EVENTS, OUTPUT
from holdfast.logs.log_lines import clean_lines

_TAIL_BYTES, _LAST_LINES = 16_384, 20


def exit_lines(attempt: Path, root_pid: int, *, has_crashed: bool = False) -> Iterator[str]:
    """The words of a program that ended with a code of its own, as a line of evidence; none when it raised an error.

    One whose process crashed after that had left by its own decision only where it is known to have asked for a code.
    """
    told = find_last_event(attempt / EVENTS, "program ended") or {}
    is_handled = find_last_event(attempt / EVENTS, "exit handlers ended")  # or a handler took another way out
    if told.get("pid") != root_pid or told.get("has_raised"):
        return
    if told.get("is_clean") if has_crashed else not is_handled:
        return
    after = f"; then {'its process' if is_handled else 'one of its exit handlers'} crashed" if has_crashed else ""
    lines = _last_lines(attempt / OUTPUT, told.get("output_bytes"))
    message = " ".join(str(told.get("message") or "").split())
    if message and message in " ".join(" ".join(lines).split()):
        yield f"its message: {message}{after}"
    elif not (message and has_crashed):
        yield f"its last line: {lines[-1]}{after}" if lines else f"it left without a word{after}"


def _last_lines(output: Path, most_bytes: object) -> list[str]:
    """The last lines among the first bytes of a file."""
    try:
        with output.open("rb") as file:
            end = most_bytes if isinstance(most_bytes, int) else file.seek(0, 2)
            begin = file.seek(max(0, end - _TAIL_BYTES))
            text = file.read(end - begin).decode(errors="replace")
    except OSError:
        return []
    lines = [line.strip() for _, line in clean_lines(enumerate(text.split("\n"))) if line.strip()]
    return lines[-_LAST_LINES:]
