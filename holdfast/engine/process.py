"""Sets up the process that trains, before torch is loaded. Nothing here changes a result."""

import contextlib
import ctypes
import os
import signal
import sys
from importlib import import_module

# From <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def prepare_process() -> None:
    """Keep memory that was taken once, let no idle thread spin, and draw no bars into a log."""
    # Two threads on a busy machine: 1.2 s a step in place of 3.9; alone on it there is no difference.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if not sys.stderr.isatty():  # a bar is thousands of lines in a log, and a full disk would end what draws it
        os.environ.setdefault("TQDM_DISABLE", "1")
    with contextlib.suppress(ImportError):
        # Its thread wakes every ten seconds: to whoever looks from outside it could wake the others of a deadlock too.
        import_module("tqdm").tqdm.monitor_interval = 0
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    # Otherwise each large tensor is new pages, which the kernel must clear: 15,000 page faults a step, 5-8 % of it.
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(_TOP_PAD, 64 << 20)
    mallopt(_ARENA_MAX, 1)  # the same for what threads other than the first take


def end_with_parent() -> None:
    """Be asked to stop when the launcher dies, however it dies: its ranks lead sessions of their own."""
    if sys.platform != "linux":
        return
    launcher = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != launcher:  # it died before the kernel was told
        os.kill(os.getpid(), signal.SIGTERM)
