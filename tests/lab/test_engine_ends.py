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

import pytest
from transformers import AutoModelForSequenceClassification

from holdfast.core.events import read_events
from holdfast.core.runfolder import EVENTS, checkpoints_folder, model_folder
from tests.tiny import tiny_attempt, tiny_bert, tiny_prepared

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_prepared(folder / "prepared")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A run whose checkpoints lie on a disk of 1 MB; one checkpoint of the tiny model has about 0.2."""
    folder = checkpoints_folder(tmp_path / "run")
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a small disk can be made by root only")
    yield folder
    subprocess.run(["umount", folder], check=True)


def start(attempt: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.engine", str(attempt)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(attempt: Path) -> tuple[int, str]:
    process = start(attempt)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors.decode()


def named(attempt: Path, name: str) -> list[dict]:
    return [event for event in read_events(attempt / EVENTS) if event["event"] == name]


def wait_for(attempt: Path, name: str, count: int = 1) -> None:
    deadline = time.monotonic() + 300
    while len(named(attempt, name)) < count:
        assert time.monotonic() < deadline, f"never {count} times: {name}"
        time.sleep(0.01)


def test_asked_to_stop_in_a_long_step_it_saves_what_was_before_and_ends_soon(tmp_path):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_prepared(tmp_path / "prepared", count=6000)
    attempt = tiny_attempt(tmp_path / "run", model, prepared, batch_size=6000, micro_tokens=40)
    process = start(attempt)
    wait_for(attempt, "epoch")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    process.communicate(timeout=300)
    assert time.monotonic() - asked < 100  # ten seconds is the promise; a crowded machine may take longer
    assert process.returncode == 143
    assert named(attempt, "step") == []
    assert named(attempt, "stopped")[0]["step"] == 0
    assert [path.name for path in checkpoints_folder(tmp_path / "run").glob("step-*")] == ["step-000000000"]


def test_a_full_disk_does_not_end_the_run_nor_touch_what_is_saved(parts, tmp_path, small_disk):
    attempt = tiny_attempt(tmp_path / "run", *parts, save_seconds=0, epochs=40)
    process = start(attempt)
    wait_for(attempt, "saved", 3)
    balloon = small_disk / "balloon"
    deadline = time.monotonic() + 300
    while len(named(attempt, "save failed")) < 3:  # room that old checkpoints leave is taken too
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError), balloon.open("ab", buffering=0) as file:
            file.write(bytes(4096))
    newest = max(small_disk.glob("step-*"))
    assert {file.name for file in newest.iterdir()} == {"manifest.json", "optimizer.safetensors", "weights.safetensors"}
    saved = len(named(attempt, "saved"))
    balloon.unlink()
    wait_for(attempt, "saved", saved + 2)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    again = tiny_attempt(tmp_path / "run", *parts, number=2, epochs=40)
    code, errors = finish(again)
    assert code == 0, errors
    assert named(again, "resumed")[0]["step"] > 0
    assert named(again, "checkpoint damaged") == []


def test_it_refuses_to_start_where_two_checkpoints_cannot_fit(parts, tmp_path, small_disk):
    (small_disk / "other").write_bytes(bytes(700_000))
    code, errors = finish(tiny_attempt(tmp_path / "run", *parts))
    assert code == 3
    assert "no room for two checkpoints" in errors
    assert "kB free" in errors


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_exported_weights_are_those_that_were_asked_for(parts, tmp_path, keep):
    attempt = tiny_attempt(tmp_path / "run", *parts, keep=keep, lr=2e-2, eval_steps=3, epochs=4, seed=3)
    code, errors = finish(attempt)
    assert code == 0, errors
    scores = {event["step"]: event["metrics"]["accuracy"] for event in named(attempt, "evaluated")}
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    best = max(scores, key=lambda step: (scores[step], -step))
    assert best != 48, "this seed should reach its best before the end"
    assert metrics["step"] == (best if keep == "best" else 48)
    assert metrics["validation"]["accuracy"] == scores[metrics["step"]]
    model = AutoModelForSequenceClassification.from_pretrained(model_folder(tmp_path / "run"))
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert "By label, validation" in (model_folder(tmp_path / "run") / "README.md").read_text()
    assert json.loads((model_folder(tmp_path / "run") / "calibration.json").read_text())["temperature"] > 0


def test_a_run_does_not_go_on_with_other_settings(parts, tmp_path):
    first = tiny_attempt(tmp_path / "run", *parts, save_seconds=0)
    process = start(first)
    wait_for(first, "saved")
    process.kill()
    process.communicate(timeout=300)
    code, errors = finish(tiny_attempt(tmp_path / "run", *parts, number=2, batch_size=4, seed=7))
    assert code == 2
    assert "batch_size: 8 then, 4 now" in errors
    assert "seed: 42 then, 7 now" in errors
    assert finish(tiny_attempt(tmp_path / "run", *parts, number=3))[0] == 0


def test_a_run_killed_in_its_last_evaluation_ends_with_the_same_weights(parts, tmp_path):
    finish(tiny_attempt(tmp_path / "unbroken", *parts, eval_steps=12))
    attempt = tiny_attempt(tmp_path / "broken", *parts, eval_steps=12, save_seconds=0)
    process = start(attempt)
    wait_for(attempt, "evaluated", 2)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=300)
    assert finish(tiny_attempt(tmp_path / "broken", *parts, number=2, eval_steps=12))[0] == 0
    files = [model_folder(tmp_path / name) / "model.safetensors" for name in ("unbroken", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
