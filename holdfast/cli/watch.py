"""`holdfast watch`: show a run live."""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.output import put
from holdfast.core.artifacts import to_plain

_DRAW_SECONDS = 0.5


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the status as one line of JSON whenever it changes.")
def watch(folder: Path, as_json: bool) -> None:
    """Show RUN live: phase, step, time left, loss, memory, what the process does, and every attempt with its cause.

    Press q or Ctrl-C to quit; the run continues. Ends by itself when the run does.
    """
    from holdfast.core.env import wants_color
    from holdfast.runs.run_path import current_run, require_request

    run = current_run(folder)
    require_request(run)
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty() or not wants_color():
            _print_changes(run, as_json)
        else:
            _draw(run)


def _draw(run: Path) -> None:
    """Draw over the same lines until the run has ended or a key was pressed."""
    import shutil

    from holdfast.cli.screen import Screen, run_lines
    from holdfast.runs.state import RunReader

    reader, screen = RunReader(run), Screen()
    with _keys() as is_quit:
        while True:
            state = reader.read()
            size = shutil.get_terminal_size()
            lines = run_lines(state, size.columns - 1, size.lines - 2)
            is_over = state.has_ended and not state.is_supervised
            screen.move([*lines, *([] if is_over else ["", "q: quit (the run continues)"])])
            if is_over or is_quit(_DRAW_SECONDS):
                return


def _print_changes(run: Path, as_json: bool) -> None:
    """One line whenever something changed, for a file, a pipe or a terminal that cannot redraw."""
    from holdfast.cli.screen import run_lines, status_fields
    from holdfast.runs.state import watch as watch_run
    from holdfast.runs.wording import brief_text

    before = ""
    for state in watch_run(run):
        fields = {**status_fields(state), "eta_seconds": None, "sentence": ""}
        line = json.dumps(to_plain(fields), ensure_ascii=False) if as_json else brief_text(state)
        if line != before:
            put(f"{line}\n")
            before = line
        if state.has_ended and not state.is_supervised and not as_json:
            put("".join(f"{one}\n" for one in run_lines(state, 10_000)))


class _Keys:
    """Waits for a key; true when it asks to quit."""

    def __call__(self, seconds: float) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(readable) and os.read(sys.stdin.fileno(), 16)[:1] in (b"q", b"Q", b"\x03", b"\x1b", b"")


class _NoKeys(_Keys):
    def __call__(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Read single keys from the terminal, if standard input is one."""
    if not sys.stdin or not sys.stdin.isatty():
        yield _NoKeys()
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
