"""Runs one attempt: `python -m holdfast.engine ATTEMPT_FOLDER`."""

import contextlib
import faulthandler
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.disk_space import FULL
from holdfast.core.errors import HoldfastError, MachineError, RequestError, error_record, render_error, set_to
from holdfast.core.event_log import EventLog
from holdfast.core.events import Event, RankEnded, RanksConnected, RankStarted
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.parent_death import end_with_parent
from holdfast.core.plan import MLX
from holdfast.core.runfolder import BEAT, BEATS, EVENTS, REFUSED, STACKS, STOP
from holdfast.engine.process_setup import prepare_process
from holdfast.engine.rank_info import RankInfo, read_rank_info


def main(attempt: Path) -> int:
    """Train as the attempt's settings say; return the exit code."""
    faulthandler.enable()  # before anything heavy is loaded
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may sum in a varying order
    info = read_rank_info(os.environ)
    try:
        beat, events = BeatWriter(_beat_path(attempt, info)), EventLog(attempt / EVENTS, is_logged=True)
    except OSError as error:
        print(render_error(_cannot_write(attempt, error)), file=sys.stderr)
        return MachineError.exit_code
    _dump_stacks_on_signal(attempt)
    if info:
        events.write(RankStarted(pid=os.getpid(), rank=info.rank, world_size=info.size))
    # Ranks lead their own sessions, so no other signal reaches them when torchrun dies; and on macOS nothing else tells
    # an engine that its supervisor has died.
    end_with_parent()
    beat.enter("import")
    prepare_process()
    # Imported here, so that the beat and the stack dumps work while torch loads.
    from holdfast.engine.bad_numbers import BadNumbers

    try:
        return _train(attempt, info, beat, _DroppedEvents() if info and info.rank else events)
    except HoldfastError as error:
        print(render_error(error), file=sys.stderr)
        with contextlib.suppress(OSError):
            write_artifact(attempt, REFUSED, error_record(error))  # the supervisor reads the value, not the text
        if info:
            # torchrun itself exits with 1 whatever its ranks exit with.
            ended = RankEnded(pid=os.getpid(), rank=info.rank, exit_code=error.exit_code, what=error.what)
            events.write(ended)
        return error.exit_code
    except BadNumbers as error:
        if not info or not info.rank:
            print(error, file=sys.stderr)
        return 1


class _DroppedEvents(EventLog):
    """Takes the events of ranks other than the first: they are the same on every rank, and the first writes them."""

    def __init__(self) -> None:
        """Open no file."""

    def write(self, event: Event) -> None:
        """Drop the event."""


def _train(attempt: Path, info: RankInfo | None, beat: BeatWriter, events: EventLog) -> int:
    from holdfast.engine.attempt_settings import read_attempt_settings
    from holdfast.engine.loop import Loop
    from holdfast.engine.tasks import load_task

    settings = read_attempt_settings(attempt)
    if settings.device == MLX:
        if info is not None:
            raise RequestError("several processes cannot train together with MLX", try_next=(set_to("processes", 1),))
        from holdfast.engine.mlx.mlx_device import limit_memory

        limit_memory()
        beat.enter("load")
        return Loop(load_task(settings), settings, beat, events).train()
    if info is None:
        settings = replace(settings, shard=False)  # a single process has all the weights
        settings.use_threads()
        beat.enter("load")
        return Loop(load_task(settings), settings, beat, events).train()
    from holdfast.engine.distributed_ranks import DistributedRanks, own_device, require_enough

    require_enough(settings.batch_size, info.size)
    device, threads = own_device(settings.device, info), info.threads(settings.threads)
    settings = replace(settings, device=device, threads=threads)
    settings.use_threads()
    ranks = DistributedRanks(info, device, attempt / STOP, in_lockstep=settings.shard)
    if info.rank and info.local_rank == 0:  # on every other machine than the first rank's, whose loop reports it there
        EventLog(attempt / EVENTS).write(RanksConnected(can_stop=True))
    beat.enter("load")
    code = Loop(load_task(settings, ranks), settings, beat, events, ranks).train()
    ranks.close()
    return code


def _beat_path(attempt: Path, info: RankInfo | None) -> Path:
    """One heartbeat page for a single process, or one for each rank."""
    if info is None:
        return attempt / BEAT
    (attempt / BEATS).mkdir(exist_ok=True)
    return attempt / BEATS / str(os.getpid())


def _dump_stacks_on_signal(attempt: Path) -> None:
    """Write the stacks of all threads on SIGUSR1, for a supervisor that may not read this process from outside."""
    try:
        (attempt / STACKS).mkdir(exist_ok=True)
        file = (attempt / STACKS / f"python-{os.getpid()}.txt").open("w")
    except OSError:
        return
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=file)


def _cannot_write(attempt: Path, error: OSError) -> MachineError:
    return MachineError(
        "cannot write to the attempt's folder",
        found=f"{error} ({attempt})",
        try_next=("free some disk space, or choose another run folder",),
        slug="disk-full" if error.errno in FULL else "",
    )


def _exit(code: int) -> None:
    """Exit. Ranks skip the cleanup: gloo's threads have aborted processes that had finished their work."""
    if read_rank_info(os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    _exit(main(Path(sys.argv[1])))
