"""Imports what an attempt needs, then waits to become one: `python -m holdfast.engine.spare_process`.

Says "ready" on its output, reads one line from its input, says "taken" and runs what that names as if it had been
started so: its output goes to the attempt's file, its input is empty, its environment names the attempt. Without a
line it ends.
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
from holdfast.core.runfolder import OUTPUT
from holdfast.engine.process_setup import prepare_process

# What may be asked for, and where its `main` is.
MAINS = {"holdfast.engine": "holdfast.engine.__main__", "holdfast.engine.trial": "holdfast.engine.trial"}
_LEAST_URGENT = 19
_OOM = Path("/proc/self/oom_score_adj")


def main() -> int:
    """Wait, and become what is asked for; give its exit code."""
    faulthandler.enable()
    prepare_process()
    before = _offer_to_oom_killer("1000")
    _import_in_the_background()
    os.write(1, b"ready\n")
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 0
    asked = json.loads(line)
    _offer_to_oom_killer(before)
    attempt = Path(asked["attempt"])
    os.write(1, b"taken\n")
    _take_on(attempt)
    code: int = import_module(MAINS[asked["module"]]).main(attempt)
    return code


def _import_in_the_background() -> None:
    """Import where nothing else needs the processor: in a thread, since a process cannot become urgent again."""
    import numpy as np  # noqa: F401  (its threads are born at import, as urgent as who imports it)

    thread = threading.Thread(target=_import_all)
    thread.start()
    thread.join()


def _import_all() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no urgency of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_URGENT)
    for name in ("loop", "settings", "tasks.classify", "tasks.causal", "tasks.two_tower"):
        import_module(f"holdfast.engine.{name}")
    for name in MAINS.values():
        import_module(name)
    with contextlib.suppress(Exception):  # not needed for anything, only dear the first time
        for family in ("bert", "llama"):
            import_module(f"transformers.models.{family}.modeling_{family}")
        import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("bert")


def _take_on(attempt: Path) -> None:
    """Make input, output and environment those of the attempt."""
    output = os.open(attempt / OUTPUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number, taken in ((0, nothing), (1, output), (2, output)):
        os.dup2(taken, number)
    folder = os.fsencode(attempt.resolve())
    # The environment that the system shows of a process is the memory it was started with: written over in place.
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    place = getenv(ATTEMPT_VARIABLE.encode())
    room = len(os.environb.get(ATTEMPT_VARIABLE.encode(), b""))
    if place and len(folder) < room:
        ctypes.memmove(place, folder.ljust(room, b"\0"), room)
    os.environ[ATTEMPT_VARIABLE] = os.fsdecode(folder)


def _offer_to_oom_killer(score: str) -> str:
    """Be the first to go where memory runs out; give what the score was."""
    try:
        before = _OOM.read_text()
        _OOM.write_text(score)
    except OSError:  # not Linux
        return score
    return before


if __name__ == "__main__":
    raise SystemExit(main())
