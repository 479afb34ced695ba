"""Runs one attempt: `python -m holdfast.engine ATTEMPT_FOLDER`."""

import errno
import faulthandler
import os
import signal
import sys
from pathlib import Path

from holdfast.core.errors import HoldfastError, MachineError, render_error
from holdfast.core.events import Events
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import BEAT, EVENTS, STACKS
from holdfast.engine.process import prepare_process


def main(attempt: Path) -> int:
    """Train what the attempt's settings say; give the exit code."""
    faulthandler.enable()  # before anything heavy is loaded
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may add in another order
    try:
        beat, events = BeatWriter(attempt / BEAT), Events(attempt / EVENTS)
    except OSError as error:
        print(render_error(_cannot_write(attempt, error)), file=sys.stderr)
        return MachineError.exit_code
    _show_stacks_when_asked(attempt)
    beat.enter("import")
    prepare_process()
    # Imported here, so that the beat and the stack dumps are armed before torch loads.
    from holdfast.engine.loop import BadNumbers, Loop, use_threads
    from holdfast.engine.settings import read_settings
    from holdfast.engine.tasks import load_task

    try:
        settings = read_settings(attempt)
        use_threads(settings)
        beat.enter("load")
        return Loop(load_task(settings), settings, beat, events).train()
    except HoldfastError as error:
        print(render_error(error), file=sys.stderr)
        return error.exit_code
    except BadNumbers as error:
        events.write("bad numbers", reason=str(error))
        print(error, file=sys.stderr)
        return 1


def _show_stacks_when_asked(attempt: Path) -> None:
    """Write every thread's stack on SIGUSR1, for a supervisor that cannot look from outside."""
    try:
        (attempt / STACKS).mkdir(exist_ok=True)
        file = (attempt / STACKS / f"python-{os.getpid()}.txt").open("w")
    except OSError:
        return
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=file)


def _cannot_write(attempt: Path, error: OSError) -> MachineError:
    return MachineError(
        "the attempt's folder cannot be written",
        seen=f"{error} ({attempt})",
        try_next=("make room, or choose another run folder",),
        slug="disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "",
    )


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
