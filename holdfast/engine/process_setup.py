"""Sets up a process of the engine before torch is loaded. Nothing here changes a result."""

import contextlib
import ctypes
import os
import sys
from importlib import import_module

# From <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


def prepare_process() -> None:
    """Keep freed memory, stop idle threads from spinning, and draw no progress bars into a log."""
    # Two threads on a busy machine: 1.2 s per step instead of 3.9 s. No difference on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if not sys.stderr.isatty():  # a bar is thousands of lines in a log, and writing them to a full disk raises
        os.environ.setdefault("TQDM_DISABLE", "1")
    with contextlib.suppress(ImportError):
        # Its monitor thread wakes every ten seconds, which hides a deadlock from the supervisor: the thread could still
        # wake the others.
        import_module("tqdm").tqdm.monitor_interval = 0
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    # By default each large tensor gets new pages, which the kernel must clear: 15,000 page faults, 5-8% of a step.
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(_TOP_PAD, 64 << 20)
    mallopt(_ARENA_MAX, 1)  # so that other threads' memory is kept too
