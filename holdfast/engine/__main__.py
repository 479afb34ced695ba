"""Runs one attempt: `python -m holdfast.engine ATTEMPT_FOLDER`."""

import faulthandler
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from holdfast.core.errors import HoldfastError, MachineError, render_error
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.old_events import Events
from holdfast.core.room import FULL
from holdfast.core.runfolder import BEAT, BEATS, EVENTS, STACKS, STOP
from holdfast.engine.place import Place, read_place
from holdfast.engine.process import end_with_parent, prepare_process
from holdfast.engine.silence import Silence


def main(attempt: Path) -> int:
    """Train what the attempt's settings say; give the exit code."""
    faulthandler.enable()  # before anything heavy is loaded
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may add in another order
    place = read_place(os.environ)
    try:
        beat, events = BeatWriter(_beat_path(attempt, place)), Events(attempt / EVENTS, is_logged=True)
    except OSError as error:
        print(render_error(_cannot_write(attempt, error)), file=sys.stderr)
        return MachineError.exit_code
    _show_stacks_when_asked(attempt)
    if place:
        events.write("rank", pid=os.getpid(), rank=place.rank, world_size=place.size)
        end_with_parent()
    beat.enter("import")
    prepare_process()
    # Imported here, so that the beat and the stack dumps are armed before torch loads.
    from holdfast.engine.bad_numbers import BadNumbers

    told = Silence() if place and place.rank else events
    try:
        return _train(attempt, place, beat, told)
    except HoldfastError as error:
        print(render_error(error), file=sys.stderr)
        if place:
            # The launcher ends with 1 whatever its ranks end with.
            about = {"rank": place.rank, "exit_code": error.exit_code, "what": error.what}
            events.write("rank ended", pid=os.getpid(), **about)
        return error.exit_code
    except BadNumbers as error:
        if not place or not place.rank:
            print(error, file=sys.stderr)
        return 1


def _train(attempt: Path, place: Place | None, beat: BeatWriter, events: Events) -> int:
    from holdfast.engine.loop import Loop
    from holdfast.engine.settings import read_settings
    from holdfast.engine.tasks import load_task

    settings = read_settings(attempt)
    if place is None:
        settings = replace(settings, shard=False)  # there is nobody to share with
        settings.use_threads()
        beat.enter("load")
        return Loop(load_task(settings), settings, beat, events).train()
    from holdfast.engine.ranks import JoinedRanks, own_device, require_enough

    require_enough(settings.batch_size, place.size)
    device, threads = own_device(settings.device, place), place.threads(settings.threads)
    settings = replace(settings, device=device, threads=threads)
    settings.use_threads()
    ranks = JoinedRanks(place, device, attempt / STOP, in_lockstep=settings.shard)
    if place.rank and place.local_rank == 0:  # on another machine than the first rank, whose loop tells this there
        Events(attempt / EVENTS).write("met", can_stop=True)
    beat.enter("load")
    code = Loop(load_task(settings, ranks), settings, beat, events, ranks).train()
    ranks.leave()
    return code


def _beat_path(attempt: Path, place: Place | None) -> Path:
    """One page for one process; ranks have one each."""
    if place is None:
        return attempt / BEAT
    (attempt / BEATS).mkdir(exist_ok=True)
    return attempt / BEATS / str(os.getpid())


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
        slug="disk-full" if error.errno in FULL else "",
    )


def _leave(code: int) -> None:
    """End without tidying up where ranks met: threads of their meeting have aborted a finished process."""
    if read_place(os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    _leave(main(Path(sys.argv[1])))
