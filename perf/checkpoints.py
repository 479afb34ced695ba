"""Measures the cost and benefit of checkpoints: time of a save, its share of training, work lost at a kill.

*Cost*: one process trains the same steps again and again in blocks. The first begins with a save and lasts until that
is on disk, the second has none, a third without a save measures the noise; their order changes. The difference is the
real cost of a save: the loop that waits for the copy, the CPU time of the writer, caches, the disk. Divided by the
interval that the engine leaves between saves at that cost, it is the share of step time. CPU time stays the same on a
busy machine, wall time does not. The *stall* is only the time that the loop waits.

*Work lost*: the engine trains under its supervisor with its default save interval and is killed with SIGKILL at random
moments. The loss is the time from the last step that the next attempt did not repeat to the kill. A run that is killed
often never gets old, so an undisturbed run is measured too: every tenth of a second, what would a kill cost now?
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import Resumed, StepDone, TrainingStarted
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import BEAT, EVENTS, REQUEST, attempt_folder
from perf.figures import Figure, write_figures
from tests.tiny import tiny_bert, tiny_prepared

PAIRS = 12
BLOCK_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Block:
    """The time of a block of steps."""

    seconds: float
    cpu_seconds: float  # of all threads


def main() -> None:
    """Measure, print the figures and add them to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="otherwise a tiny one")
    parser.add_argument("--parts", default="cost,kills,left alone", help="divided by commas")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of blocks")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=45.0, help="maximum seconds of steps before a kill")
    parser.add_argument("--alone-seconds", type=float, default=150.0, help="of the undisturbed run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-ledger", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or tiny_bert(folder / "model")
        settings = {"task": "classify", "model": str(model), "prepared": str(tiny_prepared(folder / "prepared", 480))}
        settings |= {"threads": os.cpu_count(), "batch_size": 16, "epochs": 100_000, "eval_steps": 10**9}
        if "cost" in options.parts.split(","):
            figures += cost(folder / "cost", settings, options.pairs)
        if "kills" in options.parts.split(","):
            figures += kills(folder / "kills", settings, options)
        if "left alone" in options.parts.split(","):
            figures += left_alone(folder / "alone", settings, options.alone_seconds)
    benchmark = f"checkpoints {options.model.name if options.model else 'tiny'}"
    for one in figures if options.no_ledger else ():
        print(f"{benchmark:<20} {one.subject:<50} {one.value:10.4g} {one.unit}")
    if not options.no_ledger:
        write_figures(benchmark, figures)


def cost(run: Path, settings: dict[str, object], pairs: int) -> list[Figure]:
    """Compare blocks of the same steps, with a save and without."""
    from holdfast.engine.process_setup import prepare_process

    prepare_process()
    from holdfast.engine.attempt_settings import AttemptSettings
    from holdfast.engine.loop import Loop
    from holdfast.engine.save_schedule import SaveCost, cheap_interval_seconds, longest_interval_seconds
    from holdfast.engine.tasks import load_task

    run.mkdir()
    made = AttemptSettings(**settings, run=str(run))  # type: ignore[arg-type]  # the benchmark's settings
    made.use_threads()
    loop = Loop(load_task(made), made, BeatWriter(run / BEAT), EventLog(run / EVENTS))
    stalls: list[float] = []
    saves = 0

    def steps(count: int) -> None:
        for step in range(count):
            loop._step(step, loop._order.examples(step))

    def save() -> None:
        nonlocal saves
        saves += 1
        begun = time.perf_counter()
        loop._save(saves)
        stalls.append(time.perf_counter() - begun)

    def block(count: int, has_save: bool) -> Block:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        if has_save:
            save()
        steps(count)
        loop._checkpoints.wait()
        return Block(time.perf_counter() - begun, time.process_time() - cpu_begun)

    block(10, has_save=True)
    count = max(10, round(10 * BLOCK_SECONDS / block(10, has_save=False).seconds))
    rounds: list[dict[str, Block]] = []
    for number in range(pairs):
        kinds = ("save", "none", "again")
        turn = number % 3
        rounds.append({kind: block(count, kind == "save") for kind in (*kinds[turn:], *kinds[:turn])})
        each = ", ".join(f"{kind} {one.seconds:.2f} s ({one.cpu_seconds:.2f})" for kind, one in rounds[-1].items())
        print(f"round {number + 1}, {count} steps: {each}", flush=True)
    kept = loop._checkpoints.cost
    spent = SaveCost(
        stall_seconds=statistics.median(stalls), cpu_seconds=kept.cpu_seconds, write_seconds=kept.write_seconds
    )
    apart = min(cheap_interval_seconds(spent), longest_interval_seconds(spent, made.save_seconds))

    def extra(what: str, kind: str) -> float:
        return statistics.median(getattr(one[kind], what) - getattr(one["none"], what) for one in rounds)

    usual_cpu = statistics.median(one["none"].cpu_seconds / one["none"].seconds for one in rounds)
    return [
        Figure("share of step time", "%", 100 * extra("seconds", "save") / apart, pairs),
        Figure("share of step time: the noise", "%", 100 * extra("seconds", "again") / apart, pairs),
        Figure("share of processor time", "%", 100 * extra("cpu_seconds", "save") / apart / usual_cpu, pairs),
        Figure(
            "share of processor time: the noise", "%", 100 * extra("cpu_seconds", "again") / apart / usual_cpu, pairs
        ),
        Figure("extra time of a save", "seconds", extra("seconds", "save"), pairs),
        Figure("between two saves", "seconds", apart, 1),
        Figure("stall of a save, median", "seconds", statistics.median(stalls), len(stalls)),
        Figure("stall of a save, worst", "seconds", max(stalls), len(stalls)),
        Figure("until a save is on the disk", "seconds", kept.write_seconds, 1),
        Figure("processor time of a save's writer", "seconds", kept.cpu_seconds, 1),
    ]


def kills(run: Path, settings: dict[str, object], options: argparse.Namespace) -> list[Figure]:
    """Kill a supervised run at random moments; return the repeated work."""
    draws, lost = random.Random(options.seed), []

    def disturb(number: int) -> bool:
        _wait_for_step(run, number)
        time.sleep(draws.uniform(0.0, options.longest))
        at = time.time()
        os.kill(_pid(run, number), signal.SIGKILL)
        _wait_for_step(run, number + 1)
        lost.append(_lost_seconds(run, number, at))
        print(f"kill {number}: {lost[-1]:.1f} s of work lost", flush=True)
        return number < options.kills

    _supervise(run, settings, disturb)
    return _lost("work lost at a kill", lost)


def left_alone(run: Path, settings: dict[str, object], seconds: float) -> list[Figure]:
    """Measure repeatedly what a kill of an undisturbed run would cost."""
    lost = []

    def disturb(number: int) -> bool:
        _wait_for_step(run, number)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            lost.append(time.time() - _kept_until(run, number, _newest_step(run)))
        return False

    _supervise(run, settings, disturb)
    return _lost("work at stake in a run left alone", lost)


def _lost(what: str, seconds: list[float]) -> list[Figure]:
    median = Figure(f"{what}, median", "seconds", statistics.median(seconds), len(seconds))
    return [median, Figure(f"{what}, worst", "seconds", max(seconds), len(seconds))]


def _supervise(run: Path, settings: dict[str, object], disturb) -> None:
    """Supervise a run while `disturb(attempt number)` runs in parallel, until it returns that it is done."""
    from holdfast.runs.engine_child import EngineChildren
    from holdfast.runs.supervise import RunSpec, StopRequest, supervise
    from holdfast.supervisor.ladders import engine_ladder

    run.mkdir()
    (run / REQUEST).write_text('{"kind": "perf"}')
    stop = StopRequest()

    def work() -> None:
        try:
            number = 1
            while disturb(number):
                number += 1
        finally:
            stop.ask()
            stop.ask()

    with EngineChildren(run) as children:
        settings = settings | {"run": str(run)}
        helper = threading.Thread(target=work, daemon=True)
        helper.start()
        job = RunSpec(
            kind="perf",
            words="perf",
            make_launch=lambda attempt, changes, resume: children.launch(attempt, settings, changes),
            ladder=engine_ladder(settings),
            max_attempts=1000,
        )
        result = supervise(run, job, on_event=children.listening(lambda event, details: None), stop=stop)
        helper.join(10)
        if helper.is_alive():  # it waits for a step that never comes
            raise RuntimeError(f"the run ended by itself: {result.sentence}")


def _lost_seconds(run: Path, number: int, at: float) -> float:
    """The time from the last kept step, as the next attempt found it, to the kill."""
    resumed = [event for event in read_events(attempt_folder(run, number + 1) / EVENTS) if isinstance(event, Resumed)]
    return at - _kept_until(run, number, resumed[0].step if resumed else 0)


def _kept_until(run: Path, number: int, step: int) -> float:
    """When the attempt finished the step before this one; its start if an earlier attempt did that step."""
    for event in read_events(attempt_folder(run, number) / EVENTS):
        if isinstance(event, TrainingStarted):
            found = event.time
        if isinstance(event, StepDone) and event.step < step:
            found = event.time
    return found


def _newest_step(run: Path) -> int:
    folders = sorted((run / "checkpoints").glob("step-*"))
    return int(folders[-1].name.split("-")[1]) if folders else 0


def _pid(run: Path, number: int) -> int:
    from holdfast.supervisor.members import read_root

    root = read_root(attempt_folder(run, number))
    assert root
    return root.pid


def _wait_for_step(run: Path, number: int) -> None:
    """Wait until an attempt has finished its first step."""
    from holdfast.core.heartbeat import read_beat

    while not ((beat := read_beat(attempt_folder(run, number) / BEAT)) and beat.phase == "step"):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
