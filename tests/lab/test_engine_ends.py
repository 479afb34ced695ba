"""How real training processes end: asked to stop, on a full disk, with the best weights, or refusing to start."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from transformers import AutoModelForSequenceClassification

from holdfast.core.event_log import read_events
from holdfast.core.events import (
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    EpochStarted,
    Evaluated,
    Event,
    Resumed,
    StepDone,
    TrainingFinished,
    TrainingStopped,
)
from holdfast.core.heartbeat import read_beat
from holdfast.core.runfolder import BEAT, EVENTS, checkpoints_folder, model_folder
from tests.tiny import tiny_attempt, tiny_bert, tiny_prepared

E = TypeVar("E", bound=Event)

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_prepared(folder / "prepared")


@contextlib.contextmanager
def disk_at(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a small disk can be made by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A run whose checkpoints lie on a disk of 1 MB; one checkpoint of the tiny model has about 0.2."""
    with disk_at(checkpoints_folder(tmp_path / "run"), "1m") as folder:
        yield folder


@pytest.fixture
def small_run(tmp_path) -> Iterator[Path]:
    """A run that lies whole, log and all, on a disk of 3 MB."""
    with disk_at(tmp_path / "run", "3m") as folder:
        yield folder


def fill(balloon: Path) -> None:
    """Take all room that is left on a disk, to the last byte."""
    with balloon.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def start(attempt: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.engine", str(attempt)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(attempt: Path) -> tuple[int, str]:
    process = start(attempt)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors.decode()


def named(attempt: Path, kind: type[E]) -> list[E]:
    return [event for event in read_events(attempt / EVENTS) if isinstance(event, kind)]


def wait_for(attempt: Path, kind: type[Event], count: int = 1) -> None:
    deadline = time.monotonic() + 300
    while len(named(attempt, kind)) < count:
        assert time.monotonic() < deadline, f"never {count} times: {kind.__name__}"
        time.sleep(0.01)


def test_stop_during_a_long_step_saves_the_previous_step(tmp_path):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_prepared(tmp_path / "prepared", count=6000)
    attempt = tiny_attempt(tmp_path / "run", model, prepared, batch_size=6000, micro_tokens=40)
    process = start(attempt)
    wait_for(attempt, EpochStarted)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    process.communicate(timeout=300)
    assert time.monotonic() - asked < 100  # ten seconds is the promise; a crowded machine may take longer
    assert process.returncode == 143
    assert named(attempt, StepDone) == []
    assert named(attempt, TrainingStopped)[0].step == 0
    assert [path.name for path in checkpoints_folder(tmp_path / "run").glob("step-*")] == ["step-000000000"]


def test_full_disk_keeps_the_run_and_its_saves(parts, tmp_path, small_disk):
    attempt = tiny_attempt(tmp_path / "run", *parts, save_seconds=0, epochs=40)
    process = start(attempt)
    wait_for(attempt, CheckpointSaved, 3)
    balloon = small_disk / "balloon"
    deadline = time.monotonic() + 300
    while len(named(attempt, CheckpointFailed)) < 3:  # room that old checkpoints leave is taken too
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError), balloon.open("ab", buffering=0) as file:
            file.write(bytes(4096))
    newest = max(small_disk.glob("step-*"))
    assert {file.name for file in newest.iterdir()} == {"manifest.json", "optimizer.safetensors", "weights.safetensors"}
    saved = len(named(attempt, CheckpointSaved))
    balloon.unlink()
    wait_for(attempt, CheckpointSaved, saved + 2)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    again = tiny_attempt(tmp_path / "run", *parts, number=2, epochs=40)
    code, errors = finish(again)
    assert code == 0, errors
    assert named(again, Resumed)[0].step > 0
    assert named(again, CheckpointRejected) == []


def test_run_on_full_disk_continues_after_space_is_freed(parts, tmp_path, small_run):
    finish(tiny_attempt(tmp_path / "unbroken", *parts, epochs=12))
    attempt = tiny_attempt(small_run, *parts, save_seconds=0, epochs=12)
    with (attempt / "output.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.engine", str(attempt)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    wait_for(attempt, CheckpointSaved, 2)
    balloon, beat = small_run / "balloon", read_beat(attempt / BEAT)
    assert beat is not None
    full_from, deadline = beat.step, time.monotonic() + 300
    while (now := read_beat(attempt / BEAT)) is not None and now.step < full_from + 40:
        assert process.poll() is None, (attempt / "output.log").read_text()
        assert time.monotonic() < deadline
        fill(balloon)
        time.sleep(0.01)
    assert now is not None, "the beat goes on while the disk is full"
    balloon.unlink()
    assert process.wait(timeout=300) == 0, (attempt / "output.log").read_text()
    files = [model_folder(run) / "model.safetensors" for run in (tmp_path / "unbroken", small_run)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert named(attempt, TrainingFinished), "events are whole lines again"


def test_unwritable_model_is_reported_and_written_later(parts, tmp_path):
    with disk_at(model_folder(tmp_path / "run"), "64k"):
        code, errors = finish(tiny_attempt(tmp_path / "run", *parts))
    assert code == 3
    assert "[disk-full]" in errors
    again = tiny_attempt(tmp_path / "run", *parts, number=2)
    assert finish(again)[0] == 0
    assert named(again, StepDone) == []


def test_attempt_on_full_disk_is_a_clear_error(parts, tmp_path, small_run):
    attempt = tiny_attempt(small_run, *parts)
    fill(small_run / "balloon")
    code, errors = finish(attempt)
    assert code == 3
    assert "[disk-full]" in errors
    assert "No space left on device" in errors


def test_engine_refuses_disk_without_space_for_two_checkpoints(parts, tmp_path, small_disk):
    (small_disk / "other").write_bytes(bytes(700_000))
    code, errors = finish(tiny_attempt(tmp_path / "run", *parts))
    assert code == 3
    assert "two checkpoints" in errors
    assert "kB free" in errors


@pytest.mark.parametrize("keep", ["best", "last"])
def test_requested_weights_are_exported(parts, tmp_path, keep):
    attempt = tiny_attempt(tmp_path / "run", *parts, keep=keep, lr=2e-2, eval_steps=3, epochs=4, seed=3)
    code, errors = finish(attempt)
    assert code == 0, errors
    scores = {event.step: event.metrics["accuracy"] for event in named(attempt, Evaluated)}
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    best = max(scores, key=lambda step: (scores[step], -step))
    assert best != 48, "this seed should reach its best before the end"
    assert metrics["step"] == (best if keep == "best" else 48)
    assert metrics["validation"]["accuracy"] == scores[metrics["step"]]
    model = AutoModelForSequenceClassification.from_pretrained(model_folder(tmp_path / "run"))
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert "By label, validation" in (model_folder(tmp_path / "run") / "README.md").read_text()
    assert json.loads((model_folder(tmp_path / "run") / "calibration.json").read_text())["temperature"] > 0


def test_run_does_not_resume_with_other_settings(parts, tmp_path):
    first = tiny_attempt(tmp_path / "run", *parts, save_seconds=0)
    process = start(first)
    wait_for(first, CheckpointSaved)
    process.kill()
    process.communicate(timeout=300)
    code, errors = finish(tiny_attempt(tmp_path / "run", *parts, number=2, batch_size=4, seed=7))
    assert code == 2
    assert "batch_size: 8" in errors
    assert "seed: 42" in errors
    assert finish(tiny_attempt(tmp_path / "run", *parts, number=3))[0] == 0


def test_kill_in_last_evaluation_keeps_identical_weights(parts, tmp_path):
    finish(tiny_attempt(tmp_path / "unbroken", *parts, eval_steps=12))
    attempt = tiny_attempt(tmp_path / "broken", *parts, eval_steps=12, save_seconds=0)
    process = start(attempt)
    wait_for(attempt, Evaluated, 2)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=300)
    assert finish(tiny_attempt(tmp_path / "broken", *parts, number=2, eval_steps=12))[0] == 0
    files = [model_folder(tmp_path / name) / "model.safetensors" for name in ("unbroken", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
