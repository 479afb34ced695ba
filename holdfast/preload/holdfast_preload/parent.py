"""Ends the script when its supervisor is gone, so that nothing trains forever unwatched.

On Linux the kernel already ends the first process; this is for the other processes and other systems. The check runs
from the heartbeat, so it costs nothing and needs no thread; on macOS, where the kernel can wake us, a thread waits.
"""

from __future__ import annotations

import os
import signal
import sys

from holdfast_preload import event_writer, script_settings
from holdfast_preload.beat_page import BEAT

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any


def arm() -> None:
    """End this process when the supervisor named in the settings is gone.

    In a container or on another node the pid belongs to another process or to none; then this does nothing.
    """
    supervisor, ticks = script_settings.get("supervisor"), script_settings.get("supervisor_start_ticks")
    if not isinstance(supervisor, int) or not _is_there(supervisor, ticks):
        return
    BEAT.looks.append(lambda: None if _is_there(supervisor, ticks) else _end(supervisor))
    if sys.platform == "darwin":
        _parent_death()["call_at_exit_of"](supervisor, lambda: _end(supervisor))


def _is_there(pid: int, start_ticks: object) -> bool:
    if sys.platform == "linux" and isinstance(start_ticks, int):
        return _start_ticks(pid) == start_ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _start_ticks(pid: int) -> int:
    """When a process started, in kernel ticks; 0 if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _end(supervisor: int) -> None:
    event_writer.write("orphaned", supervisor=supervisor)
    os.kill(os.getpid(), signal.SIGTERM)


def _parent_death() -> dict[str, Any]:
    """The functions of `holdfast/core/parent_death.py`, which scripts cannot import by name."""
    here = os.path.abspath(__file__)
    package = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    path = os.path.join(package, "core", "parent_death.py")
    names: dict[str, Any] = {"__name__": "holdfast_parent_death"}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), names)
    return names
