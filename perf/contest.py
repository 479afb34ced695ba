"""Times several trainers on the same task: each in its own process, in turns of a few steps, with medians of all turns.

All turns see the same other load, so their ratio is valid on a busy machine too. The wall clock decides; the CPU time
of all threads, which other processes hardly affect, is shown next to it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, write_figures


@dataclass(frozen=True, slots=True)
class Turn:
    """What one trainer did in its turn."""

    examples: float
    seconds: float
    cpu_seconds: float


class Contestant:
    """A process that trains for the requested number of steps."""

    def __init__(self, name: str, command: list[str], env: dict[str, str] | None = None, python: str = sys.executable):
        self.name = name
        self._process = subprocess.Popen(
            [python, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
        )

    def turn(self, steps: int) -> Turn:
        """Let it do this many steps."""
        assert self._process.stdin
        assert self._process.stdout
        print(steps, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("TURN "):
                return Turn(**json.loads(line.removeprefix("TURN ")))
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class Pace:
    """The contestant's side: call `step` after each step."""

    def __init__(self) -> None:
        self._left, self._examples = 0, 0.0
        self._begun = self._cpu_begun = 0.0

    def start(self) -> None:
        """Wait for the first turn."""
        self._take_turn()

    def step(self, examples: float) -> None:
        """Count one step; at the end of a turn report it and wait for the next."""
        self._examples += examples
        self._left -= 1
        if self._left == 0:
            _wait_for_card()
            turn = {
                "examples": self._examples,
                "seconds": time.perf_counter() - self._begun,
                "cpu_seconds": time.process_time() - self._cpu_begun,
            }
            print("TURN " + json.dumps(turn), flush=True)
            self._take_turn()

    def _take_turn(self) -> None:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self._left, self._examples = int(line), 0.0
        self._begun, self._cpu_begun = time.perf_counter(), time.process_time()


def contest(contestants: list[Contestant], rounds: int, steps: int, warm_up: int = 3) -> dict[str, list[Turn]]:
    """Let everyone warm up, then take turns."""
    turns: dict[str, list[Turn]] = {}
    try:
        for contestant in contestants:
            contestant.turn(warm_up)
        for number in range(rounds):
            for contestant in contestants:
                turns.setdefault(contestant.name, []).append(contestant.turn(steps))
            rates = ", ".join(f"{name} {_rate(found[-1]):.1f}" for name, found in turns.items())
            print(f"round {number + 1}: {rates}", file=sys.stderr, flush=True)
    finally:
        for contestant in contestants:
            contestant.close()
    return turns


def report(
    benchmark: str,
    turns: dict[str, list[Turn]],
    ours: str,
    device: str = "cpu",
    *,
    tokens: float = 0.0,
    shares: dict[str, tuple[float, int]] | None = None,
) -> None:
    """Print medians and ratios; add a line for each to the ledger.

    `tokens` is the mean length of an example, `shares` the share of the machine's multiplication rate that each used.
    """
    medians = {name: statistics.median(map(_rate, found)) for name, found in turns.items()}
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{benchmark} (load {load})")
    for name, found in turns.items():
        cpu = 1000 * statistics.median(turn.cpu_seconds / turn.examples for turn in found)
        ratio = medians[ours] / medians[name]
        used = f"   {shares[name][0]:4.1f} % of the matrix rate" if shares else ""
        rate = f"{medians[name]:7.2f} examples/s {medians[name] * tokens:8.0f} tokens/s"
        print(f"  {name:<34} {rate}   ours {ratio:5.2f}x   {cpu:6.1f} ms CPU per example{used}")
    medians_of = {name: (medians[name], len(found)) for name, found in turns.items()}
    figures = [Figure(name, "examples/s", rate, rounds) for name, (rate, rounds) in medians_of.items()]
    if tokens:
        figures += [Figure(name, "tokens/s", tokens * rate, rounds) for name, (rate, rounds) in medians_of.items()]
    if shares:
        figures += [Figure(name, "% of the matrix rate", share, rounds) for name, (share, rounds) in shares.items()]
    write_figures(benchmark, figures, device)


def run_engine(task: str, model: Path, prepared: Path, threads: int | None, **more: object) -> None:
    """Run the engine's loop, in turns, until stopped."""
    from holdfast.engine.process_setup import prepare_process

    prepare_process()
    from holdfast.core.event_log import EventLog
    from holdfast.core.heartbeat import BeatWriter
    from holdfast.engine.attempt_settings import AttemptSettings
    from holdfast.engine.data_order import Indices
    from holdfast.engine.loop import Loop
    from holdfast.engine.tasks import load_task

    pace = Pace()

    class Paced(Loop):
        def _step(self, step: int, examples: Indices) -> None:
            super()._step(step, examples)
            pace.step(len(examples))

    with tempfile.TemporaryDirectory() as run:
        settings = AttemptSettings(
            task=task,
            model=str(model),
            prepared=str(prepared),
            run=run,
            epochs=1000,
            eval_steps=10**9,
            save_seconds=1e9,
            threads=threads,
            **more,  # type: ignore[arg-type]  # the benchmark's settings
        )
        settings.use_threads()
        loop = Paced(
            load_task(settings), settings, BeatWriter(Path(run) / "beat"), EventLog(Path(run) / "events.jsonl")
        )
        pace.start()
        loop.train()


def hf_arguments(folder: str, batch_size: int, is_grouped: bool) -> Any:
    """The settings that HF Trainer shares with the engine's defaults."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch_size,
        num_train_epochs=1000,
        learning_rate=5e-5,
        weight_decay=0.01,
        optim="adamw_torch_fused",
        train_sampling_strategy="group_by_length" if is_grouped else "random",
        save_strategy="no",
        report_to="none",
        logging_steps=500,
        disable_tqdm=True,
        use_cpu=True,
    )


def paced_trainer(batch_size: int) -> Callable[..., Any]:
    """HF Trainer that takes turns."""
    from transformers import Trainer

    return lambda **kwargs: Trainer(callbacks=[paced_callback(batch_size)], **kwargs)


def paced_callback(batch_size: int) -> Any:
    """Lets any trainer with HF's interface take turns."""
    from transformers import TrainerCallback

    pace = Pace()

    class Paced(TrainerCallback):
        def on_train_begin(self, args: object, state: object, control: object, **kwargs: object) -> None:
            pace.start()

        def on_step_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
            pace.step(batch_size)

    return Paced()


def _wait_for_card() -> None:
    """Work on a card continues after the call that started it."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        torch.cuda.synchronize()


def _rate(turn: Turn) -> float:
    return turn.examples / turn.seconds
