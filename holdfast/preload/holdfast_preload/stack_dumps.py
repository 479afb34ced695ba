"""Python stacks in `stacks/python-PID.txt`: on fatal signals, and on SIGUSR1 when the supervisor asks.

Both paths of faulthandler are C and need no GIL, so they work in a process that is stuck. The file is opened before
anything can go wrong, and again after a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Callable

from holdfast_preload import script_settings

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61  # "Yama"

_file = -1
_prctl: Callable[..., int] | None = None


def arm() -> None:
    """Write the stacks of this process and its forks, each into a separate file."""
    os.makedirs(os.path.join(script_settings.attempt, "stacks"), exist_ok=True)
    _open_file()
    _find_prctl()
    _allow_supervisor()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_open_file)
        os.register_at_fork(after_in_child=_allow_supervisor)


def release_signals() -> None:
    """Release the fatal signals before another handler takes them."""
    faulthandler.disable()


def retake_signals() -> None:
    """Take the fatal signals again, ahead of the handler that took them meanwhile."""
    if _file >= 0:
        faulthandler.enable(_file)


def forget_if_empty() -> None:
    """Remove the file of a process that ends well: data loaders start new workers every epoch."""
    path = os.path.join(script_settings.attempt, "stacks", f"python-{os.getpid()}.txt")
    with contextlib.suppress(OSError):
        if os.path.getsize(path) == 0:
            os.remove(path)


def _find_prctl() -> None:
    """Find out whether only ancestors may read a process (Ubuntu's default), so that the supervisor must be allowed."""
    global _prctl
    try:
        with open(_YAMA, "rb") as file:
            is_closed = file.read(1) == b"1"
    except OSError:  # this system has no such rule
        return
    if is_closed and isinstance(script_settings.get("supervisor"), int):
        import ctypes

        _prctl = ctypes.CDLL(None).prctl


def _allow_supervisor() -> None:
    """Let the supervisor and its tools read this process. A fork does not inherit this."""
    if _prctl is not None:
        _prctl(_PR_SET_PTRACER, script_settings.get("supervisor"), 0, 0, 0)


def _open_file() -> None:
    global _file
    before = _file
    path = os.path.join(script_settings.attempt, "stacks", f"python-{os.getpid()}.txt")
    with contextlib.suppress(OSError, ValueError):
        _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.enable(_file)
        if hasattr(faulthandler, "register") and _may_take_usr1():
            faulthandler.register(signal.SIGUSR1, file=_file, all_threads=True, chain=False)
        if before >= 0:
            os.close(before)


def _may_take_usr1() -> bool:
    """Whether SIGUSR1 is free: a script that handles it keeps it, in its forks too."""
    return signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, None)
