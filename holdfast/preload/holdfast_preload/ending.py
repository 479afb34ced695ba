"""Tells that the program itself has come to its end: a crash after that is one of libraries that are being closed.

Told by the first process only, whose end is the attempt's, from the exit handler that runs last.
"""

from __future__ import annotations

import atexit
import os
import sys

from holdfast_preload import events, settings

_asked: list[object] = []  # what `sys.exit` was given


def arm() -> None:
    """Tell when all of the program's own code has run."""
    if os.getppid() == settings.get("supervisor"):
        atexit.register(_tell, os.getpid())
        sys.exit = _note_and_exit  # type: ignore[assignment]  # it does not return either


def _note_and_exit(status: object = None, /) -> None:
    _asked.append(status)
    raise SystemExit(status)


def _tell(pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of it
        has_raised = getattr(sys, "last_value", None) is not None
        events.write("program ended", is_clean=not has_raised and all(status in (None, 0) for status in _asked))
