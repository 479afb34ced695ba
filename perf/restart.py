"""Measures how soon a killed training continues: from SIGKILL to the end of the next attempt's first step.

The same run is killed repeatedly, with and without a spare process that waits to become the next attempt. The time
includes detection, diagnosis, start, loading the model and the checkpoint, and one step. `--model FOLDER` replaces the
tiny model.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.core.heartbeat import read_beat
from holdfast.core.runfolder import BEAT, REQUEST, attempt_folder
from holdfast.runs import engine_child
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.supervise import RunSpec, StopRequest, supervise
from holdfast.supervisor.ladders import engine_ladder
from holdfast.supervisor.members import read_root
from perf.figures import Figure, write_figures
from tests.tiny import tiny_bert, tiny_prepared


def main() -> None:
    """Kill a run several times with and without a spare; print medians and add them to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or tiny_bert(folder / "model")
        prepared = tiny_prepared(folder / "prepared", 480)
        found = {
            words: _measure(folder / words.replace(" ", "-"), model, prepared, options.rounds, has_spare)
            for words, has_spare in (("new process", False), ("spare", True))
        }
    _write(options.model.name if options.model else "tiny", found)


def _measure(run: Path, model: Path, prepared: Path, rounds: int, has_spare: bool) -> list[float]:
    run.mkdir()
    (run / REQUEST).write_text('{"kind": "perf"}')
    settings = {"task": "classify", "model": str(model), "prepared": str(prepared), "run": str(run), "threads": 2}
    settings |= {"batch_size": 4, "epochs": 1000, "save_seconds": 2.0, "device": "cpu", "eval_steps": 100_000}
    engine_child._TRAINED_SECONDS = 0.0 if has_spare else float("inf")
    stop, seconds = StopRequest(), []
    with EngineChildren(run) as children:
        killer = threading.Thread(target=_kill, args=(run, rounds, children, has_spare, stop, seconds), daemon=True)
        killer.start()
        job = RunSpec(
            kind="perf",
            words="perf",
            make_launch=lambda attempt, changes, resume: children.launch(attempt, settings, changes),
            ladder=engine_ladder(settings),
        )
        supervise(run, job, on_event=children.listening(lambda event, details: None), stop=stop)
        killer.join()
    return seconds


def _kill(
    run: Path, rounds: int, children: EngineChildren, has_spare: bool, stop: StopRequest, seconds: list[float]
) -> None:
    try:
        for number in range(1, rounds + 1):
            _wait_for_step(run, number)
            done = read_beat(attempt_folder(run, number) / BEAT).step
            while has_spare and not children._spare.is_ready:
                time.sleep(0.05)
            while read_beat(attempt_folder(run, number) / BEAT).step < done + 12:
                time.sleep(0.05)
            begun = time.monotonic()
            os.kill(read_root(attempt_folder(run, number)).pid, signal.SIGKILL)
            _wait_for_step(run, number + 1)
            seconds.append(time.monotonic() - begun)
    finally:
        stop.ask()
        stop.ask()


def _wait_for_step(run: Path, number: int) -> None:
    """Wait until an attempt has finished its first step."""
    while not ((beat := read_beat(attempt_folder(run, number) / BEAT)) and beat.phase == "step"):
        time.sleep(0.005)


def _write(model: str, found: dict[str, list[float]]) -> None:
    for words, values in found.items():
        print(f"{words}: {', '.join(f'{value:.2f}' for value in values)} s from a kill to the end of the next step")
    figures = [Figure(words, "seconds", statistics.median(values), len(values)) for words, values in found.items()]
    write_figures(f"restart {model}", figures)


if __name__ == "__main__":
    main()
