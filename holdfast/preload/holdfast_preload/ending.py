"""Tells that the program itself has come to its end: a crash after that is one of libraries that are being closed.

Told by the first process only, whose end is the attempt's, from the exit handler that runs last.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
from typing import NoReturn

from holdfast_preload import events, settings

_asked: list[object] = []  # what `leave` was given


def arm() -> None:
    """Tell when all of the program's own code has run."""
    if os.getppid() == settings.get("supervisor"):
        atexit.register(_tell, os.getpid())
        sys.exit = builtins.exit = builtins.quit = leave  # type: ignore[assignment]  # they do not return either


def leave(status: object = None, /) -> NoReturn:
    """Leave the program with this status, and remember it: Python tells nobody of a SystemExit."""
    _asked.append(status)
    raise SystemExit(status)


def _tell(pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of it
        has_raised = getattr(sys, "last_value", None) is not None
        events.write("program ended", is_clean=not has_raised and all(status in (None, 0) for status in _asked))
