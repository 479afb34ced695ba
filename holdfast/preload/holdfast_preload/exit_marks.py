"""Marks the end of the program itself: a crash after it comes from exit handlers or from closing libraries.

Only the first process writes these events, because its end is the attempt's: one when its code and its threads have
ended, one when its exit handlers have run.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
from typing import NoReturn

from holdfast_preload import event_writer, script_settings

_MOST_CHARACTERS = 1000
_statuses: list[object] = []  # the statuses passed to `leave`


def arm() -> None:
    """Write events when the program's own code and its exit handlers have run."""
    if os.getppid() == script_settings.get("supervisor"):
        sys.exit = builtins.exit = builtins.quit = leave  # type: ignore[assignment]  # these never return either
        atexit.register(_mark_handlers_ended, os.getpid())
        # Exit handlers run in reverse order, after what `threading` does at the end of the main thread: a handler that
        # is registered there runs before all others.
        threading._register_atexit(atexit.register, _mark_program_ended, os.getpid())  # type: ignore[attr-defined]  # private; there is no public way


def leave(status: object = None, /) -> NoReturn:
    """Exit with this status and remember it: Python keeps no record of a SystemExit."""
    if threading.current_thread() is threading.main_thread():  # in other threads only the thread ends
        _statuses.append(status)
    raise SystemExit(status)


def _mark_program_ended(pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        has_raised = getattr(sys, "last_value", None) is not None
        is_clean = not has_raised and all(status in (None, 0) for status in _statuses)
        said = [str(status) for status in _statuses[-1:] if isinstance(status, (str, Exception))]
        message = "".join(said)[:_MOST_CHARACTERS]
        ended = {"is_clean": is_clean, "has_raised": has_raised, "message": message, "output_bytes": _output_bytes()}
        event_writer.write("program_ended", **ended)


def _output_bytes() -> int | None:
    """The size of the output so far: what follows comes from exit handlers."""
    try:
        return os.path.getsize(os.path.join(script_settings.attempt, "output.log"))
    except OSError:
        return None


def _mark_handlers_ended(pid: int) -> None:
    if os.getpid() == pid:
        event_writer.write("exit_handlers_ended")
