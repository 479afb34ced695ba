"""Tells that the program itself has come to its end: a crash after that is one of exit handlers, or of libraries that
are being closed.

Told by the first process only, whose end is the attempt's: when its last line is done and its threads have ended, and
again once its exit handlers have run.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
from typing import NoReturn

from holdfast_preload import events, settings

_MOST_CHARACTERS = 1000
_asked: list[object] = []  # what `leave` was given


def arm() -> None:
    """Tell when the program's own code has run, and when its exit handlers have."""
    if os.getppid() == settings.get("supervisor"):
        sys.exit = builtins.exit = builtins.quit = leave  # type: ignore[assignment]  # they do not return either
        atexit.register(_tell_handled, os.getpid())
        # Exit handlers run from the last to the first, after what `threading` does at the end of the main thread:
        # one that is registered there runs before all others.
        threading._register_atexit(atexit.register, _tell, os.getpid())  # type: ignore[attr-defined]  # private, no other way


def leave(status: object = None, /) -> NoReturn:
    """Leave the program with this status, and remember it: Python tells nobody of a SystemExit."""
    if threading.current_thread() is threading.main_thread():  # any other ends alone
        _asked.append(status)
    raise SystemExit(status)


def _tell(pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of it
        has_raised = getattr(sys, "last_value", None) is not None
        is_clean = not has_raised and all(status in (None, 0) for status in _asked)
        said = [str(status) for status in _asked[-1:] if isinstance(status, (str, Exception))]
        message = "".join(said)[:_MOST_CHARACTERS]
        ended = {"is_clean": is_clean, "has_raised": has_raised, "message": message, "output_bytes": _output_bytes()}
        events.write("program ended", **ended)


def _output_bytes() -> int | None:
    """How much was printed so far: what comes after that are words of exit handlers."""
    try:
        return os.path.getsize(os.path.join(settings.attempt, "output.log"))
    except OSError:
        return None


def _tell_handled(pid: int) -> None:
    if os.getpid() == pid:
        events.write("exit handlers ended")
