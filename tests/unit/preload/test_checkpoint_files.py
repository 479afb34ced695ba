"""Whole and broken checkpoints, told apart without torch."""

import json
import zipfile

import pytest
from holdfast_preload.checkpoint_files import numbered, why_broken, why_broken_file


@pytest.fixture
def whole(tmp_path):
    folder = tmp_path / "checkpoint-20"
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"x" * 200)
    state = {"global_step": 20, "log_history": [{"loss": 1.0, "grad_norm": 0.5, "step": 20}]}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def test_intact_checkpoint_is_accepted(whole):
    assert why_broken(str(whole)) == ""


def test_checkpoint_without_trainer_state_is_broken(whole):
    (whole / "trainer_state.json").unlink()
    assert "not finished" in why_broken(str(whole))


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        *(("trainer_state.json", 10), ("model.safetensors", 40), ("model.safetensors", 4)),
        *(("optimizer.pt", 150), ("optimizer.pt", 0), ("rng_state.pth", 100)),
    ],
)
def test_truncated_file_is_named(whole, name, keep):
    cut(whole / name, keep)
    assert name in why_broken(str(whole))


def test_missing_shard_is_named(whole):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (whole / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors" in why_broken(str(whole))


def test_checkpoint_with_nan_log_is_rejected(whole):
    state = {"global_step": 20, "log_history": [{"loss": 0.0, "grad_norm": float("nan")}, {"eval_loss": 1.0}]}
    (whole / "trainer_state.json").write_text(json.dumps(state))
    assert "grad_norm nan" in why_broken(str(whole))


def test_old_torch_format_is_accepted(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x02legacy")
    assert why_broken_file(str(tmp_path / "model.bin")) == ""


def test_checkpoints_are_found_by_number(tmp_path):
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-best", "other"):
        (tmp_path / name).mkdir()
    assert [step for step, _ in numbered(str(tmp_path))] == [100, 9]
    assert numbered(str(tmp_path / "absent")) == []
