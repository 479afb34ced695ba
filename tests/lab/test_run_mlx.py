"""MLX trainings under `holdfast run`: `mlx_lm.lora` as users call it, and loops written by hand."""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.event_log import read_events
from holdfast.core.events import (
    BadNumbersFound,
    ChangeApplied,
    CheckpointRejected,
    CheckpointSaved,
    Event,
    Resumed,
    WeightsChecked,
)
from holdfast.core.runfolder import EVENTS
from tests.lab.preloaded import SCRIPTS, Preloaded, at_step
from tests.lab.supervised import finish, start, supervise, wait_for_step
from tests.tiny import tiny_chat_model, tiny_texts

pytest.importorskip("mlx_lm")
pytestmark = pytest.mark.lab
LOOP = SCRIPTS / "mlx_loop.py"
STRIKE = Path(__file__).parent / "faults" / "strike"
ITERATIONS = 200
# What continues only if everything is restored: dropout, warm-up and decay, AdamW, and five epochs of shuffled batches.
CONFIG = """
lora_parameters: {rank: 4, dropout: 0.1, scale: 10.0}
lr_schedule: {name: cosine_decay, arguments: [1.0e-3, 200], warmup: 5}
optimizer: adamw
"""


@pytest.fixture(scope="module")
def lora(tmp_path_factory) -> Callable[..., list[str]]:
    """Words of a `mlx_lm.lora` command for a tiny model that writes to a folder."""
    folder = tmp_path_factory.mktemp("lora")
    tiny_chat_model(folder / "model")
    for split, count in (("train", 96), ("valid", 16)):
        texts, _ = tiny_texts(count, seed=count)
        lines = [json.dumps({"text": " ".join(f"w{token}" for token in text if token < 119)}) for text in texts]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    (folder / "config.yaml").write_text(CONFIG)

    def command(output: Path, *more: str) -> list[str]:
        words = f"-m mlx_lm lora --train --iters {ITERATIONS} --num-layers 2 --batch-size 4 --save-every 50"
        words += " --steps-per-eval 20 --val-batches 2 --steps-per-report 10"
        places = ["--model", folder / "model", "--data", folder, "--config", folder / "config.yaml"]
        return [*words.split(), *map(str, places), "--adapter-path", str(output), *more]

    return command


@pytest.fixture(scope="module")
def unbroken(lora, tmp_path_factory) -> dict[str, str]:
    """Fingerprints of the adapters that an undisturbed run leaves."""
    run = tmp_path_factory.mktemp("unbroken")
    attempt = Preloaded(run, 1, *lora(run / "out")).finish()
    beat = attempt.furthest()
    assert beat
    assert (beat.step, beat.steps) == (ITERATIONS, ITERATIONS)
    return adapters(run / "out")


def adapters(folder: Path) -> dict[str, str]:
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}
    assert {"adapters.safetensors", "best_adapters.safetensors"} <= found.keys()
    return found


def struck(how: str, iteration: int, once: Path) -> dict[str, str]:
    """Variables for a command that is struck once, in an iteration; evaluated batches count too."""
    path = os.pathsep.join([str(STRIKE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "STRIKE": f"{how}:step:{iteration}", "STRIKE_ONCE": str(once)}


def events_of(run: Path, kind: type[Event]) -> list[Event]:
    attempts = sorted((run / "attempts").iterdir())
    return [event for attempt in attempts for event in read_events(attempt / EVENTS) if isinstance(event, kind)]


def test_stopped_and_killed_lora_ends_with_identical_adapters(lora, unbroken, tmp_path, lab_row):
    run = tmp_path / "run"
    stop = struck("SIGTERM", 40, tmp_path / "struck")  # it saves and ends
    process = start(run, sys.executable, *lora(tmp_path / "out"), **stop)
    os.kill(wait_for_step(run, 60, attempt=2), signal.SIGKILL)
    done = finish(process, run)
    (saved,) = events_of(run, CheckpointSaved)
    same = adapters(tmp_path / "out") == unbroken
    first = done.outcomes[1]
    lab_row(
        fault="SIGKILL",
        phase="step",
        task="mlx_lm.lora",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis or "",
        finished=done.exit_code == 0,
        identical=same,
    )
    assert done.exit_code == 0, done.output
    assert [one.diagnosis for one in done.outcomes] == ["process-killed", "process-killed", None]
    assert [event.step for event in events_of(run, Resumed)] == [saved.step, saved.step]
    assert same
    assert not (run / "checkpoints").exists()


def test_deadlocked_lora_is_noticed_and_finishes(lora, unbroken, tmp_path, lab_row):
    deadlock = struck("deadlock", 40, tmp_path / "struck")
    done = supervise(tmp_path / "run", sys.executable, *lora(tmp_path / "out"), **deadlock)
    first, same = done.outcomes[0], adapters(tmp_path / "out") == unbroken
    lab_row(
        fault="own lock",
        phase="step",
        task="mlx_lm.lora",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis or "",
        finished=done.exit_code == 0,
        identical=same,
    )
    assert done.exit_code == 0, done.output
    assert (first.outcome, first.diagnosis, first.phase) == ("hung", "thread-deadlock", "step")
    assert 30 <= first.step_reached <= 40
    assert same


@pytest.mark.full
def test_kills_and_accumulation_keep_identical_adapters(lora, tmp_path):
    more = ("--grad-accumulation-steps", "3")
    Preloaded(tmp_path / "whole", 1, *lora(tmp_path / "whole/out", *more)).finish()
    run = tmp_path / "run"
    for number, step in enumerate((10, 47, 100), start=1):
        attempt = Preloaded(run, number, *lora(run / "out", *more), resume=number > 1, save_seconds=0)
        attempt.wait_until(at_step(step)).kill()
    last = Preloaded(run, 4, *lora(run / "out", *more), resume=True).finish()
    (resumed,) = last.events(Resumed)
    assert 95 <= resumed.step < ITERATIONS
    assert resumed.step % 3 == 0
    assert adapters(run / "out") == adapters(tmp_path / "whole/out")


@pytest.mark.full
@pytest.mark.parametrize("broken", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_flipped_bit_of_a_checkpoint_is_noticed(lora, unbroken, tmp_path, broken):
    attempt = Preloaded(tmp_path, 1, *lora(tmp_path / "out"), save_seconds=0)
    attempt.wait_until(at_step(60)).kill()
    older, newer = sorted(
        (path for path in (tmp_path / "checkpoints/train-1").iterdir() if not path.name.endswith(".partial")),
        key=lambda path: int(path.name.removeprefix("step-")),
    )
    content = bytearray((newer / broken).read_bytes())
    content[len(content) // 2] ^= 1
    (newer / broken).write_bytes(content)
    last = Preloaded(tmp_path, 2, *lora(tmp_path / "out"), resume=True).finish()
    assert newer.name in [Path(event.path).name for event in last.events(CheckpointRejected)]
    assert [Path(event.checkpoint).name for event in last.events(Resumed)] == [older.name]
    assert adapters(tmp_path / "out") == unbroken


def test_nan_loss_ends_lora_and_keeps_no_bad_checkpoint(lora, tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.write_text("{}")
    more = ("--learning-rate", "1e30", "--iters", "60", "--config", str(empty))
    attempt = Preloaded(tmp_path, 1, *lora(tmp_path / "out", *more), save_seconds=0).finish(code=1)
    (bad,) = attempt.events(BadNumbersFound)
    assert bad.step <= 10
    assert bad.last_finite_step < bad.step
    assert [event.step for event in attempt.events(CheckpointSaved) if event.step > bad.last_finite_step] == []


def test_changes_of_the_plan_reach_mlx(lora, tmp_path):
    changes = {"device": "cpu", "compile": False, "gradient_checkpointing": True}
    attempt = Preloaded(tmp_path, 1, *lora(tmp_path / "out", "--iters", "5"), changes=changes).finish()
    assert {event.change for event in attempt.events(ChangeApplied)} == changes.keys()


@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_steps_of_own_loops_are_counted(tmp_path, kind):
    attempt = Preloaded(tmp_path, 1, LOOP, "weights.safetensors", kind).finish()
    assert attempt.step() == 60
    assert attempt.events(WeightsChecked) == []


def test_nan_weights_of_an_own_loop_are_reported(tmp_path):
    attempt = Preloaded(tmp_path, 1, LOOP, "weights.safetensors", "nan").finish()
    assert attempt.step() == 60
    (checked,) = attempt.events(WeightsChecked)
    assert checked.is_nan
    assert 20 < checked.step <= 60
