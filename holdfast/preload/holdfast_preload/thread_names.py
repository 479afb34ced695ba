"""Tells the kernel (on macOS, the threads library) the names of Python's threads, so that they can be told apart.

Python does this itself from 3.14 on. A progress bar's monitor thread wakes now and then whatever the training does, and
the supervisor must not take it for the thread that a stuck main thread waits for.
"""

from __future__ import annotations

import contextlib
import sys
import threading

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any

_LONGEST = 15  # bytes


def arm() -> None:
    """Name each thread as it starts."""
    thread_class: Any = threading.Thread
    inner = getattr(thread_class, "_bootstrap_inner", None)
    if inner is None or not sys.platform.startswith(("linux", "darwin")):
        return

    def named(self: threading.Thread) -> Any:
        name_thread(self)
        return inner(self)

    thread_class._bootstrap_inner = named  # private: every new thread runs it


def name_thread(thread: threading.Thread) -> None:
    """Name the calling thread after its class, or as its author named it."""
    kind = type(thread).__name__
    name = thread.name if kind in ("Thread", "Timer") else kind
    if sys.platform == "darwin":
        import ctypes

        ctypes.CDLL(None).pthread_setname_np(name.encode(errors="replace")[:_LONGEST])
        return
    with contextlib.suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb") as file:
        file.write(name.encode(errors="replace")[:_LONGEST])
