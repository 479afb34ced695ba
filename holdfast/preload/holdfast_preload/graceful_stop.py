"""Requests to stop: SIGTERM, or a file `stop` in the attempt folder. The training then saves and ends after its step.

SIGTERM is handled only while a Trainer trains, only if the script does not handle it, and never in forks, which their
parents end by it. A second SIGTERM ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from holdfast_preload import script_settings

_is_asked = False
_is_armed = False


def is_asked() -> bool:
    """Whether the training was asked to save and end."""
    attempt = script_settings.attempt  # empty outside `holdfast run`
    return _is_asked or bool(attempt and os.path.exists(os.path.join(attempt, "stop")))


def is_asked_by_signal() -> bool:
    """The same without a check of the disk, cheap enough for every step."""
    return _is_asked


def arm() -> None:
    """Handle SIGTERM as a request to save and end, from the start of a training."""
    global _is_armed
    if threading.current_thread() is not threading.main_thread() or _is_armed:
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _ask)
        _is_armed = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=disarm)


def disarm() -> None:
    """Restore the default handling of SIGTERM."""
    global _is_armed
    if _is_armed:
        _is_armed = False
        if signal.getsignal(signal.SIGTERM) is _ask:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ask(number: int, frame: Any) -> None:
    global _is_asked
    if _is_asked:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    _is_asked = True
