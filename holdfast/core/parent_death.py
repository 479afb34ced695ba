"""Ends a process with its parent: the kernel's signal on Linux, a kqueue on macOS, a check every second elsewhere.

Standard library only, nothing of Holdfast: `supervisor/launch.py` and the preload load this file by its path.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_LOOK_SECONDS = 1.0


def end_with_parent(number: int = signal.SIGTERM, parent_pid: int | None = None) -> None:
    """Send this process a signal when its parent ends; at once if that has happened already.

    On Linux the request survives exec, and is about the thread that started this process. Elsewhere a thread waits for
    the parent, and that thread ends with exec.
    """
    parent = os.getppid() if parent_pid is None else parent_pid
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl took effect
            os.kill(os.getpid(), number)
        return
    call_at_exit_of(parent, lambda: os.kill(os.getpid(), number))


def call_at_exit_of(pid: int, then: Callable[[], object]) -> None:
    """Call a function, from a thread, when another process has ended."""
    import threading

    def wait() -> None:
        wait_for_exit(pid)
        then()

    threading.Thread(target=wait, daemon=True, name="holdfast-parent").start()


def wait_for_exit(pid: int) -> None:
    """Return when a process has ended; at once when there is none of that number."""
    if sys.platform == "darwin" and _wait_in_kernel(pid):
        return
    is_parent = os.getppid() == pid
    while os.getppid() == pid if is_parent else is_alive(pid):
        time.sleep(_LOOK_SECONDS)


def _wait_in_kernel(pid: int) -> bool:
    import select

    if sys.platform == "darwin":
        queue = select.kqueue()
        wanted = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([wanted], 1, None)
        except ProcessLookupError:
            return True
        except OSError:  # not ours to watch
            return False
        finally:
            queue.close()
        return True
    return False


def is_alive(pid: int) -> bool:
    """Whether a process exists, also one of another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
