"""Python stacks into `stacks/python-PID.txt`: on fatal signals, and on SIGUSR1 when the supervisor asks.

Both paths of faulthandler are C and need no GIL, so they answer from a process that is stuck. The file is opened
before anything can go wrong, and anew after a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Callable

from holdfast_preload import settings

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61  # "Yama"

_file = -1
_prctl: Callable[..., int] | None = None


def arm() -> None:
    """Write stacks of this process, and of every process forked from it, each into a file of its own."""
    os.makedirs(os.path.join(settings.attempt, "stacks"), exist_ok=True)
    _aim()
    _learn_to_allow()
    _allow_supervisor()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_aim)
        os.register_at_fork(after_in_child=_allow_supervisor)


def let_go() -> None:
    """Leave the fatal signals to somebody who is about to take them."""
    faulthandler.disable()


def arm_again() -> None:
    """Come first at the fatal signals again; whoever took them meanwhile comes second."""
    if _file >= 0:
        faulthandler.enable(_file)


def forget_if_empty() -> None:
    """Take away the file of a process that ends well: data loaders make new workers every epoch."""
    path = os.path.join(settings.attempt, "stacks", f"python-{os.getpid()}.txt")
    with contextlib.suppress(OSError):
        if os.path.getsize(path) == 0:
            os.remove(path)


def _learn_to_allow() -> None:
    """Where only ancestors may look into a process (Ubuntu's default), the supervisor's own tools must be let in."""
    global _prctl
    try:
        with open(_YAMA, "rb") as file:
            is_closed = file.read(1) == b"1"
    except OSError:  # no such rule here
        return
    if is_closed and isinstance(settings.get("supervisor"), int):
        import ctypes

        _prctl = ctypes.CDLL(None).prctl


def _allow_supervisor() -> None:
    """Let the supervisor, and what it starts, read this process. A fork does not inherit it."""
    if _prctl is not None:
        _prctl(_PR_SET_PTRACER, settings.get("supervisor"), 0, 0, 0)


def _aim() -> None:
    global _file
    before = _file
    path = os.path.join(settings.attempt, "stacks", f"python-{os.getpid()}.txt")
    with contextlib.suppress(OSError, ValueError):
        _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.enable(_file)
        if hasattr(faulthandler, "register") and _may_take_usr1():
            faulthandler.register(signal.SIGUSR1, file=_file, all_threads=True, chain=False)
        if before >= 0:
            os.close(before)


def _may_take_usr1() -> bool:
    """A script that handles the signal itself keeps it, in its forked children too."""
    return signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, None)
