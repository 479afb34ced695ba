"""Measures how soon training starts: from the command to the end of the first step, Holdfast against a Trainer script.

Both use the same file and model. The script is that of the Trainer's tutorial: load_dataset, map with the tokenizer, a
split, train. `holdfast train` also surveys the data, checks the machine and, the first time, proves its plan with a few
steps; the first step counted is the first of the run itself. *Cold*: no data is prepared and nothing is remembered
about the machine. *Warm*: the same command again; both then use what they prepared. They take turns. The CPU time of
all their processes is the same on a busy machine, wall time is not.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.core.event_log import read_events
from holdfast.core.events import StepDone
from holdfast.core.runfolder import EVENTS
from perf.figures import Figure, write_figures
from perf.first_step_peer import BATCH_SIZE, EPOCHS
from perf.peers import peer_python

LIMIT_SECONDS = 600.0
PACKAGES = ("transformers==5.22.2", "accelerate", "datasets")


@dataclass(frozen=True, slots=True)
class Begun:
    """The time until the first step was done."""

    seconds: float
    cpu_seconds: float


def main() -> None:
    """Start both several times, cold and warm; print medians and add them to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--data", type=Path, required=True, help="a CSV file with the columns text and label")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-ledger", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Begun]] = {}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            for state in ("cold", "warm"):
                for who, measure in (("holdfast", ours), ("HF Trainer script", peer)):
                    begun = measure(Path(name), state, options)
                    found.setdefault(f"{who}, {state}", []).append(begun)
                    print(f"round {number + 1}: {who}, {state}: {begun}", flush=True)
    figures = [
        Figure(who, unit, statistics.median(getattr(one, what) for one in times), len(times))
        for unit, what in (("processor seconds", "cpu_seconds"), ("seconds", "seconds"))
        for who, times in sorted(found.items(), key=lambda item: not item[0].startswith("holdfast"))
    ]
    if options.no_ledger:
        print(*figures, sep="\n")
    else:
        write_figures("first_step", figures)


def ours(folder: Path, state: str, options: argparse.Namespace) -> Begun:
    """The time until the run has finished a step that counts."""
    run = folder / f"run-{state}"
    command = [sys.executable, "-m", "holdfast", "train", str(options.data), "--model", str(options.model)]
    command += ["--text-column", "text", "--label-column", "label", "--out", str(run), "--offline"]
    command += ["--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    homes = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    return _until_step(command, homes, run / "attempts" / "01" / EVENTS, folder / f"ours-{state}.txt")


def peer(folder: Path, state: str, options: argparse.Namespace) -> Begun:
    """The time until the script has finished a step."""
    told = folder / f"peer-{state}.jsonl"
    script = Path(__file__).with_name("first_step_peer.py")
    command = [peer_python("trainer", *PACKAGES), str(script), str(options.model), str(options.data), str(told)]
    homes = {"HF_DATASETS_CACHE": str(folder / "datasets"), "HF_HUB_OFFLINE": "1"}
    return _until_step(command, homes, told, folder / f"peer-{state}.txt")


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, including ended ones."""
    root, used = psutil.Process(pid), 0.0
    for one in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def _until_step(command: list[str], variables: dict[str, str], told: Path, output: Path) -> Begun:
    begun = time.time()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        while time.time() < begun + LIMIT_SECONDS:
            for event in read_events(told):
                if isinstance(event, StepDone):
                    return Begun(event.time - begun, _cpu_seconds(process.pid))
            if process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"no step came: {output.read_text(errors='replace')[-3000:]}")
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
