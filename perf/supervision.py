"""Measures the cost of supervision: CPU time and memory of the supervisor, and how much it slows steps down.

Two processes train the same small network on one thread in short turns, A B B A A B B A ...: one alone, one under
`holdfast run`; the supervisor is stopped while the other has its turn. Then two new processes do the same, because a
process's memory layout has a larger effect than supervision. A third one, alone, measures the noise. It compares the
CPU time of a step, which a busy machine hardly affects, and wall time. The cost of one preload call is also measured
separately, many times in a row.
"""

import argparse
import json
import os
import random
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

from perf.figures import Figure, write_figures

TURN_SECONDS = 0.1
HOOK_CALLS = 300_000


@dataclass(frozen=True, slots=True)
class Turn:
    """The work of one process in its turn."""

    steps: int
    seconds: float
    cpu_seconds: float

    @property
    def step_cpu_seconds(self) -> float:
        """CPU time of one step."""
        return self.cpu_seconds / self.steps

    @property
    def step_seconds(self) -> float:
        """Wall time of one step."""
        return self.seconds / self.steps


class Trainer:
    """A training process, controlled through two FIFOs."""

    def __init__(self, folder: Path, prefix: list[str]):
        folder.mkdir()
        self._asks, self._answers = folder / "asks", folder / "answers"
        os.mkfifo(self._asks)
        os.mkfifo(self._answers)
        command = [sys.executable, __file__, "--train", str(folder)]
        # In its own session, like a supervised process, because Linux schedules processors by session.
        self.process = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self._to, self._from = self._asks.open("w"), self._answers.open()

    def turn(self, seconds: float = TURN_SECONDS) -> Turn:
        """Let it work for this long."""
        print(seconds, file=self._to, flush=True)
        return Turn(**json.loads(self._from.readline()))

    def hook_seconds(self) -> float:
        """CPU time of the preload's work after a step."""
        print("hook", file=self._to, flush=True)
        return float(json.loads(self._from.readline()))

    def close(self) -> None:
        """Let it end by itself."""
        self._to.close()
        self._from.close()
        self.process.wait()


def main() -> None:
    """Take turns, print medians and add them to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="of processes")
    parser.add_argument("--turns", type=int, default=60, help="turns per process; an even number")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    pairs = []
    for number in range(options.pairs):
        with tempfile.TemporaryDirectory() as name:
            pairs.append(measure_pair(Path(name), options.turns))
        print(f"pair {number + 1}: supervised over alone {pairs[-1].watched_cpu:.4f}", flush=True)
    write_figures("supervision", summary(pairs))


@dataclass(frozen=True, slots=True)
class Pair:
    """The result of one set of processes: medians of ratios over its turns."""

    watched_cpu: float
    watched_wall: float
    again_cpu: float
    again_wall: float
    step_seconds: float
    hook_seconds: float
    share: float
    resident_bytes: int


def measure_pair(folder: Path, turns: int) -> Pair:
    """Restart the three processes and let them take turns."""
    run = [sys.executable, "-m", "holdfast", "run", "--quiet", "--no-memory", "--run", str(folder / "run"), "--"]
    trainers = {"alone": Trainer(folder / "alone", []), "again": Trainer(folder / "again", [])}
    trainers["watched"] = watched = Trainer(folder / "watched", run)
    supervisor = psutil.Process(watched.process.pid)
    for trainer in trainers.values():
        trainer.turn(1.0)
    seen: dict[str, list[Turn]] = {name: [] for name in trainers}
    shares = []
    for number in range(turns):
        for name in (
            list(trainers) if number % 2 else reversed(trainers)
        ):  # the first one sees a different machine state
            cpu_before, begun = _cpu_seconds(supervisor), time.monotonic()
            seen[name].append(_turn(trainers[name], supervisor, is_watched=name == "watched"))
            if name == "watched":
                shares.append((_cpu_seconds(supervisor) - cpu_before) / (time.monotonic() - begun))
    hook_seconds, resident_bytes = watched.hook_seconds(), supervisor.memory_info().rss
    for trainer in trainers.values():
        trainer.close()
    return Pair(
        watched_cpu=_ratio(seen["watched"], seen["alone"], "step_cpu_seconds"),
        watched_wall=_ratio(seen["watched"], seen["alone"], "step_seconds"),
        again_cpu=_ratio(seen["again"], seen["alone"], "step_cpu_seconds"),
        again_wall=_ratio(seen["again"], seen["alone"], "step_seconds"),
        step_seconds=statistics.median(turn.step_cpu_seconds for turn in seen["watched"]),
        hook_seconds=hook_seconds,
        share=statistics.mean(shares),  # samples come about once a second, so most turns contain none
        resident_bytes=resident_bytes,
    )


def summary(pairs: list[Pair]) -> list[Figure]:
    """Medians over all sets of processes, and their confidence intervals."""
    rounds = len(pairs)
    lines = [
        ("processor share of the supervisor", "share of one core", statistics.median(pair.share for pair in pairs)),
        (
            "preload, processor time a step",
            "microseconds",
            1e6 * statistics.median(pair.hook_seconds for pair in pairs),
        ),
        (
            "preload, share of a step",
            "share",
            statistics.median(pair.hook_seconds / pair.step_seconds for pair in pairs),
        ),
    ]
    for name, words in (("watched", "supervised over alone"), ("again", "alone over alone: the noise")):
        for kind, clock in (("cpu", "processor time of a step"), ("wall", "step time")):
            ratios = [getattr(pair, f"{name}_{kind}") for pair in pairs]
            low, high = _interval(ratios)
            print(f"{clock}, {words}: between {low:.4f} and {high:.4f} (90 %)")
            lines.append((f"{clock}, {words}", "ratio", statistics.median(ratios)))
    lines.append(("memory of the supervisor", "MB", max(pair.resident_bytes for pair in pairs) / 1e6))
    return [Figure(*line, rounds) for line in lines]


def _turn(trainer: Trainer, supervisor: psutil.Process, is_watched: bool) -> Turn:
    if is_watched:
        return trainer.turn()
    supervisor.send_signal(signal.SIGSTOP)
    try:
        return trainer.turn()
    finally:
        supervisor.send_signal(signal.SIGCONT)


def _ratio(ours: list[Turn], theirs: list[Turn], what: str) -> float:
    return statistics.median(getattr(one, what) / getattr(other, what) for one, other in zip(ours, theirs, strict=True))


def _interval(values: list[float], draws: int = 4000) -> tuple[float, float]:
    """The 90% confidence interval of the median, by bootstrap."""
    random_ = random.Random(0)
    medians = sorted(statistics.median(random_.choices(values, k=len(values))) for _ in range(draws))
    return medians[draws // 20], medians[-draws // 20]


def train(folder: Path) -> None:
    """The training process: a small network that trains for as many seconds as each line says."""
    import torch

    torch.set_num_threads(1)  # two threads that spin for each other on a busy machine take 1 to 3 times as long
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.rand(256, 512)
    with (folder / "asks").open() as asks, (folder / "answers").open("w") as answers:
        for line in asks:
            if line.strip() == "hook":
                print(json.dumps(_hook_seconds(optimizer)), file=answers, flush=True)
                continue
            steps, begun, cpu_begun = 0, time.monotonic(), time.process_time()
            while time.monotonic() < begun + float(line):
                steps += 1
                loss = (model(data) - data).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            used = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu_begun}
            print(json.dumps({"steps": steps, **used}), file=answers, flush=True)


def _hook_seconds(optimizer: object) -> float:
    from torch.optim import optimizer as module

    hooks = list(module._global_optimizer_post_hooks.values())
    begun = time.process_time()
    for _ in range(HOOK_CALLS):
        for hook in hooks:
            hook(optimizer, (), {})
    return (time.process_time() - begun) / HOOK_CALLS


def _cpu_seconds(process: psutil.Process) -> float:
    """Finer than psutil, which counts in hundredths of a second and is used outside Linux."""
    try:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        used = process.cpu_times()
        return used.user + used.system


if __name__ == "__main__":
    main()
