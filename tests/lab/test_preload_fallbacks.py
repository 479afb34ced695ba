"""Fallbacks in unmodified scripts: each reaches what it should, reports it, and leaves the rest of the script alone."""

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.core.events import ChangeApplied, CheckpointSkipped, PartUsed
from tests.lab.preloaded import PYTHON, SCRIPTS, Preloaded, has_library
from tests.tiny import tiny_bert

pytestmark = pytest.mark.lab
LOOP, CLASSIFY = SCRIPTS / "plain_loop.py", SCRIPTS / "hf_classify.py"


def can_mount() -> bool:
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and not subprocess.run(words, capture_output=True, check=False).returncode


def weights(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def applied(attempt: Preloaded) -> dict[object, object]:
    return {event.change: event.value for event in attempt.events(ChangeApplied)}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("model"))


def test_changes_reach_a_hand_written_loop(tmp_path):
    plain = Preloaded(tmp_path / "a", 1, LOOP, "out.pt", "workers=2").finish()
    assert applied(plain) == {}
    assert [event.workers for event in plain.events(PartUsed)] == [2]
    changes = {"loader_workers": 0, "device": "cpu", "threads": 1}
    changed = Preloaded(tmp_path / "b", 1, LOOP, "out.pt", "workers=2", changes=changes).finish()
    assert applied(changed) == changes
    assert "mps False cuda False\nthreads 1" in changed.output.read_text()
    assert changed.step() == plain.step() == 12
    assert weights(tmp_path / "a/out.pt") == weights(tmp_path / "b/out.pt")


def test_workers_are_spawned_instead_of_forked(tmp_path):
    changes = {"start_method": "spawn", "prefetch_batches": 2}
    attempt = Preloaded(tmp_path, 1, LOOP, "out.pt", "workers=1", changes=changes).finish()
    assert applied(attempt) == changes


@pytest.mark.full
def test_compile_and_autocast_turned_off(tmp_path):
    changes = {"compile": False, "precision": "fp32"}
    attempt = Preloaded(tmp_path, 1, LOOP, "out.pt", "compile=true", "autocast=true", changes=changes).finish()
    assert applied(attempt) == changes
    assert attempt.events(PartUsed)[0].what == "compile"


def test_phases_of_a_hand_written_loop_are_seen(tmp_path):
    attempt = Preloaded(tmp_path, 1, LOOP, "out.pt", "steps=40")
    seen: list[str] = []

    def look(_: Preloaded) -> bool:
        beat = attempt.furthest()
        if beat and beat.phase not in seen[-1:]:
            seen.append(beat.phase)
        return attempt.process.poll() is not None

    while not look(attempt):
        time.sleep(0.002)
    assert attempt.process.returncode == 0
    assert "import" in seen
    assert attempt.furthest().phase == "evaluate"  # a loop by hand does not say when an evaluation ends


@pytest.mark.full
def test_split_batches_train_like_whole_ones(model, tmp_path):
    options = ("num_train_epochs=1", "per_device_train_batch_size=6", "logging_steps=100", "dataloader_num_workers=2")
    Preloaded(tmp_path / "a", 1, CLASSIFY, model, "out", *options).finish()
    changes = {"loader_workers": 0, "device": "cpu", "precision": "fp32"}
    settings = {"micro_batch_factor": 4, "eval_micro_batch_factor": 2, "changes": changes}
    changed = Preloaded(tmp_path / "b", 1, CLASSIFY, model, "out", *options, "bf16=true", **settings).finish()
    assert applied(changed) == {"micro_batch": 1, "eval_micro_batch": 4} | changes
    assert changed.step() == 16
    import torch
    from safetensors.torch import load_file

    before, after = (load_file(tmp_path / name / "out/final/model.safetensors") for name in "ab")
    assert max(float((before[name] - after[name]).abs().max()) for name in before) < 0.02  # dropout falls otherwise
    assert all(torch.isfinite(value).all() for value in after.values())


@pytest.mark.full
def test_half_precision_weights_are_trained_in_float32(model, tmp_path):
    from transformers import AutoModelForSequenceClassification

    AutoModelForSequenceClassification.from_pretrained(model, num_labels=3).half().save_pretrained(tmp_path / "half")
    options = ("num_train_epochs=1", "learning_rate=1e-4")
    attempt = Preloaded(
        tmp_path, 1, CLASSIFY, tmp_path / "half", "out", *options, changes={"precision": "fp32"}
    ).finish()
    assert applied(attempt) == {"precision": "fp32"}
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "out/final/model.safetensors")
    assert {str(value.dtype) for value in kept.values()} == {"torch.float32"}


@pytest.mark.full
@pytest.mark.skipif(not can_mount(), reason="needs to mount a small disk")
@pytest.mark.parametrize("fallback", [{}, {"save_on_full_disk": "skip"}], ids=["as it is", "saves skipped"])
def test_full_disk_ends_a_trainer_unless_saves_are_skipped(model, tmp_path, fallback):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = f'mount -t tmpfs -o size=600k none {disk} && exec {PYTHON} {CLASSIFY} {model} {disk}/out "$@"'
    options = ("save_steps=10", "num_train_epochs=2")
    attempt = Preloaded(tmp_path, 1, "unshare", "-m", "sh", "-c", words, "sh", *options, changes=fallback)
    code = attempt.process.wait(timeout=300)
    text = attempt.output.read_text()
    if fallback:
        assert attempt.events(CheckpointSkipped)
        assert attempt.step() == 24
    else:
        assert "unexpected pos" in text or "No space left" in text
    assert code == (0 if fallback else 1)


@pytest.mark.skipif(not has_library("datasets"), reason="datasets is not installed")
def test_mapping_rows_is_tokenizing(tmp_path):
    script = tmp_path / "rows.py"
    script.write_text(
        "from datasets import Dataset\nfrom holdfast_preload.beat_page import BEAT, PHASES\nseen = []\n"
        "Dataset.from_dict({'a': [1, 2]}).map(lambda row: seen.append(PHASES[BEAT.phase]) or row)\nprint(seen[0])\n"
    )
    attempt = Preloaded(tmp_path, 1, script).finish()
    assert attempt.output.read_text().splitlines()[-1] == "tokenize"


def test_failed_import_has_a_clean_traceback(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import gone_for_good\n")
    (tmp_path / "train.py").write_text("import torch\n")
    attempt = Preloaded(tmp_path, 1, tmp_path / "train.py").finish(code=1)
    text = attempt.output.read_text()
    assert "No module named 'gone_for_good'" in text
    assert "holdfast" not in text
