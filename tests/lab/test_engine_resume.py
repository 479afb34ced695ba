"""Kills real training processes at bad moments and compares the weights they end with."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.event_log import read_events
from holdfast.core.events import CheckpointRejected, StepDone
from holdfast.core.runfolder import EVENTS, checkpoints_folder, model_folder
from tests.tiny import tiny_attempt, tiny_bert, tiny_instructions, tiny_llama, tiny_prepared

pytestmark = pytest.mark.lab
STEPS = 36  # 96 examples, 8 a step, 3 epochs


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_prepared(folder / "prepared")


def start(attempt: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.engine", str(attempt)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def require(device: str) -> None:
    if device == "mlx":
        pytest.importorskip("mlx.core")


def finish(attempt: Path) -> int:
    process = start(attempt)
    _, errors = process.communicate(timeout=600)
    assert process.returncode in (0, 143), errors.decode()
    return process.returncode


def weights(run: Path) -> str:
    return hashlib.sha256((model_folder(run) / "model.safetensors").read_bytes()).hexdigest()


def wait_for_step(attempt: Path, step: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if any(isinstance(event, StepDone) and event.step >= step for event in read_events(attempt / EVENTS)):
            return
        time.sleep(0.002)
    raise AssertionError(f"step {step} never came")


@pytest.mark.parametrize(
    ("micro_tokens", "threads", "device"),
    [
        (16_384, 1, "cpu"),
        pytest.param(60, 1, "cpu", marks=pytest.mark.full),
        pytest.param(16_384, 2, "cpu", marks=pytest.mark.full),
        (100, 2, "cpu"),
        (100, 1, "mlx"),
    ],
    ids=["whole step at once", "accumulated", "two hands", "two hands, accumulated", "MLX, accumulated"],
)
def test_kills_at_random_steps_keep_identical_weights(parts, tmp_path, micro_tokens, threads, device):
    require(device)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    wanted = {"micro_tokens": micro_tokens, "threads": threads, "device": device}
    finish(tiny_attempt(unbroken, *parts, **wanted))
    draws = random.Random(micro_tokens)
    for number, kill in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV), start=1):
        attempt = tiny_attempt(broken, *parts, number=number, save_seconds=0, **wanted)
        process = start(attempt)
        wait_for_step(attempt, draws.randrange(number * 8, number * 8 + 8))
        process.send_signal(kill)
        process.communicate(timeout=300)
        assert process.returncode == (143 if kill == signal.SIGTERM else -kill)
    finish(tiny_attempt(broken, *parts, number=4, **wanted))
    assert weights(broken) == weights(unbroken)


@pytest.mark.parametrize(
    ("threads", "device"), [pytest.param(1, "cpu", marks=pytest.mark.full), (2, "cpu"), (1, "mlx")]
)
@pytest.mark.parametrize("lora", [None, {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}], ids=["full", "LoRA"])
def test_killed_language_model_has_identical_weights(tmp_path, lora, threads, device):
    require(device)
    parts = tiny_llama(tmp_path / "model"), tiny_instructions(tmp_path / "prepared")
    wanted = {"task": "causal", "options": {"lora": lora}, "micro_tokens": 100, "threads": threads, "device": device}
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    finish(tiny_attempt(unbroken, *parts, **wanted))
    attempt = tiny_attempt(broken, *parts, save_seconds=0, **wanted)
    process = start(attempt)
    wait_for_step(attempt, 15)
    process.kill()
    process.communicate(timeout=300)
    finish(tiny_attempt(broken, *parts, number=2, **wanted))
    assert weights(broken) == weights(unbroken)


@pytest.mark.parametrize("device", ["cpu", "mlx"])
def test_kill_during_save_resumes_from_the_previous(parts, tmp_path, device):
    require(device)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    finish(tiny_attempt(unbroken, *parts, device=device))
    attempt = tiny_attempt(broken, *parts, save_seconds=0, device=device)
    process = start(attempt)
    wait_for_step(attempt, 5)
    folder = checkpoints_folder(broken)
    deadline = time.monotonic() + 300
    while not any(draft.iterdir() for draft in folder.glob(".draft-*") if draft.exists()):
        assert time.monotonic() < deadline, "no save was ever seen half-way"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    finish(tiny_attempt(broken, *parts, number=2, device=device))
    assert weights(broken) == weights(unbroken)


@pytest.mark.parametrize(
    "damage",
    [
        "bit flipped",
        pytest.param("truncated", marks=pytest.mark.full),
        pytest.param("manifest gone", marks=pytest.mark.full),
    ],
)
def test_damaged_checkpoint_is_reported_and_previous_used(parts, tmp_path, damage):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    finish(tiny_attempt(unbroken, *parts))
    attempt = tiny_attempt(broken, *parts, save_seconds=0)
    process = start(attempt)
    wait_for_step(attempt, 12)
    process.kill()
    process.communicate(timeout=300)
    newest = max(checkpoints_folder(broken).glob("step-*"))
    target = newest / "optimizer.safetensors"
    if damage == "truncated":
        os.truncate(target, target.stat().st_size // 2)
    elif damage == "bit flipped":
        content = bytearray(target.read_bytes())
        content[-5] ^= 1
        target.write_bytes(content)
    else:
        (newest / "manifest.json").unlink()
    second = tiny_attempt(broken, *parts, number=2)
    finish(second)
    events = list(read_events(second / EVENTS))
    assert [event.path for event in events if isinstance(event, CheckpointRejected)] == [newest.name]
    assert weights(broken) == weights(unbroken)


def test_smaller_micro_batches_learn_the_same(parts, tmp_path):
    losses = []
    for name, micro_tokens in (("whole", 16_384), ("split", 40)):
        attempt = tiny_attempt(tmp_path / name, *parts, micro_tokens=micro_tokens)
        finish(attempt)
        losses.append([event.loss for event in read_events(attempt / EVENTS) if isinstance(event, StepDone)])
    assert len(losses[0]) == STEPS
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize("device", ["cpu", "mlx"])
def test_nan_loss_ends_before_weights_change(parts, tmp_path, device):
    require(device)
    attempt = tiny_attempt(tmp_path / "run", *parts, lr=1e30, warmup_ratio=0.0, max_grad_norm=0.0, device=device)
    process = start(attempt)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert b"nan-loss" in errors
    assert list((tmp_path / "run").glob("nan-batch-*.json"))


def test_mlx_process_never_loads_torch(parts, tmp_path):
    require("mlx")
    attempt = tiny_attempt(tmp_path / "run", *parts, device="mlx", max_steps=2)
    code = (
        "import sys; from pathlib import Path; from holdfast.engine.__main__ import main; "
        "code = main(Path(sys.argv[1])); print(sorted({'torch', 'transformers', 'mlx'} & {*sys.modules})); "
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, attempt], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "['mlx']"
