"""Imports what an attempt needs, then waits to become one: `python -m holdfast.engine.spare_process`.

Writes "ready", reads one line of JSON from standard input, writes "taken", and then runs the module of that line as if
it had been started that way: output goes to the attempt's file, input is empty, and the environment names the attempt.
Without a line it ends.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import sys
import threading
from importlib import import_module
from pathlib import Path

from holdfast.core.env import ATTEMPT_VARIABLE
from holdfast.core.parent_death import end_with_parent
from holdfast.core.runfolder import OUTPUT
from holdfast.engine.process_setup import prepare_process

# The modules that can be requested, and where their `main` is.
MAINS = {"holdfast.engine": "holdfast.engine.__main__", "holdfast.engine.trial": "holdfast.engine.trial"}
_LOWEST_PRIORITY = 19
_OOM = Path("/proc/self/oom_score_adj")


def main() -> int:
    """Wait, run the requested module, and return its exit code."""
    faulthandler.enable()
    prepare_process()
    end_with_parent()
    before = _offer_to_oom_killer("1000")
    _import_in_the_background()
    os.write(1, b"ready\n")
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 0
    request = json.loads(line)
    _offer_to_oom_killer(before)
    attempt = Path(request["attempt"])
    os.write(1, b"taken\n")
    _adopt(attempt)
    code: int = import_module(MAINS[request["module"]]).main(attempt)
    return code


def _import_in_the_background() -> None:
    """Import at the lowest priority: in a thread, because a process cannot raise its priority again."""
    import numpy as np  # noqa: F401  (its threads start at import, with the importing thread's priority)

    thread = threading.Thread(target=_import_all)
    thread.start()
    thread.join()


def _import_all() -> None:
    if sys.platform == "linux":  # elsewhere threads have no separate priority
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    for name in ("loop", "settings", "tasks.classify", "tasks.causal", "tasks.two_tower"):
        import_module(f"holdfast.engine.{name}")
    for name in MAINS.values():
        import_module(name)
    with contextlib.suppress(Exception):  # not needed, only slow the first time
        for family in ("bert", "llama"):
            import_module(f"transformers.models.{family}.modeling_{family}")
        import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("bert")


def _adopt(attempt: Path) -> None:
    """Switch input, output and environment to those of the attempt."""
    output = os.open(attempt / OUTPUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number, taken in ((0, nothing), (1, output), (2, output)):
        os.dup2(taken, number)
    folder = os.fsencode(attempt.resolve())
    # The supervisor finds an attempt's processes by HOLDFAST_ATTEMPT in /proc/PID/environ. That file shows the memory
    # that the process was started with, which setenv does not change, so the value is overwritten in place. The parent
    # starts the spare with a value that is long enough.
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address = getenv(ATTEMPT_VARIABLE.encode())
    room = len(os.environb.get(ATTEMPT_VARIABLE.encode(), b""))
    if address and len(folder) < room:
        ctypes.memmove(address, folder.ljust(room, b"\0"), room)
    os.environ[ATTEMPT_VARIABLE] = os.fsdecode(folder)


def _offer_to_oom_killer(score: str) -> str:
    """Set the OOM score, so that the kernel kills an idle spare first; return the score before."""
    try:
        before = _OOM.read_text()
        _OOM.write_text(score)
    except OSError:  # not Linux
        return score
    return before


if __name__ == "__main__":
    raise SystemExit(main())
