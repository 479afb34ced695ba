"""Measures what supervision costs: processor time and memory of the supervisor, and how much it slows steps down.

Three processes train the same small network on one thread in turns of a few seconds: two alone, one under
`holdfast run`. The supervisor is stopped while the others have their turns. Its processor time is what other work on
the machine hardly touches; the ratio of step times is the promise itself, and means nothing below the noise, which is
the ratio of the two that are alone.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

LEDGER = Path(__file__).parent / "ledger.csv"
TURN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one process did in its turn."""

    steps: int
    seconds: float
    cpu_seconds: float

    @property
    def step_seconds(self) -> float:
        """Wall clock of one step."""
        return self.seconds / self.steps


class Trainer:
    """A training process that works for as long as it is told, through two FIFOs."""

    def __init__(self, folder: Path, prefix: list[str]):
        folder.mkdir()
        self._asks, self._answers = folder / "asks", folder / "answers"
        os.mkfifo(self._asks)
        os.mkfifo(self._answers)
        command = [sys.executable, __file__, "--train", str(folder)]
        # In a session of its own, as a supervised one is: Linux shares processors out by sessions.
        self.process = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self._to, self._from = self._asks.open("w"), self._answers.open()

    def turn(self, seconds: float = TURN_SECONDS) -> Turn:
        """Let it work for so long."""
        print(seconds, file=self._to, flush=True)
        return Turn(**json.loads(self._from.readline()))

    def close(self) -> None:
        """Let it end by itself."""
        self._to.close()
        self._from.close()
        self.process.wait()


def main() -> None:
    """Take turns, print medians and add them to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.rounds)


def measure(folder: Path, rounds: int) -> None:
    """Take turns, print medians and add them to the ledger."""
    run = [sys.executable, "-m", "holdfast", "run", "--quiet", "--no-memory", "--run", str(folder / "run"), "--"]
    trainers = {"alone": Trainer(folder / "alone", []), "again": Trainer(folder / "again", [])}
    trainers["watched"] = watched = Trainer(folder / "watched", run)
    supervisor = psutil.Process(watched.process.pid)
    for trainer in trainers.values():
        trainer.turn(1.0)
    steps: dict[str, list[float]] = {name: [] for name in trainers}
    shares = []
    for number in range(rounds):
        names = list(trainers)
        for name in names[number % 3 :] + names[: number % 3]:  # whoever comes first finds another machine
            cpu_before, begun = _cpu_seconds(supervisor), time.monotonic()
            turn = _turn(trainers[name], supervisor, is_watched=name == "watched")
            steps[name].append(turn.step_seconds)
            if name == "watched":
                shares.append((_cpu_seconds(supervisor) - cpu_before) / (time.monotonic() - begun))
    resident_bytes = supervisor.memory_info().rss
    for trainer in trainers.values():
        trainer.close()
    lines = [
        ("processor share of the supervisor", "share of one core", statistics.median(shares), rounds),
        ("step time, supervised over alone", "ratio", _median_ratio(steps["watched"], steps["alone"]), rounds),
        ("step time, alone over alone: the noise", "ratio", _median_ratio(steps["again"], steps["alone"]), rounds),
        ("memory of the supervisor", "MB", resident_bytes / 1e6, 1),
    ]
    _write(lines)


def _turn(trainer: Trainer, supervisor: psutil.Process, is_watched: bool) -> Turn:
    if is_watched:
        return trainer.turn()
    supervisor.send_signal(signal.SIGSTOP)
    try:
        return trainer.turn()
    finally:
        supervisor.send_signal(signal.SIGCONT)


def _median_ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def train(folder: Path) -> None:
    """The training process: a small network, for as many seconds as each line asks for."""
    import torch

    torch.set_num_threads(1)  # two that spin for each other on a busy machine take anything from 1 to 3 times as long
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.rand(256, 512)
    with (folder / "asks").open() as asks, (folder / "answers").open("w") as answers:
        for line in asks:
            steps, begun, cpu_begun = 0, time.monotonic(), time.process_time()
            while time.monotonic() < begun + float(line):
                steps += 1
                loss = (model(data) - data).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            used = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu_begun}
            print(json.dumps({"steps": steps, **used}), file=answers, flush=True)


def _cpu_seconds(process: psutil.Process) -> float:
    """Finer than psutil, which counts in hundredths of a second; elsewhere than on Linux that has to do."""
    try:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        used = process.cpu_times()
        return used.user + used.system


def _write(lines: list[tuple[str, str, float, int]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{platform.system()} {platform.machine()} {os.cpu_count()} cores"
    with LEDGER.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for subject, unit, value, rounds in lines:
            print(f"{subject:<44} {value:8.4f} {unit}")
            writer.writerow([today, commit, machine, "supervision", subject, unit, f"{value:.4f}", rounds])


if __name__ == "__main__":
    main()
