import json

import pytest
import torch

from holdfast.core.disk_space import Room
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import CheckpointFailed
from holdfast.engine import checkpoint
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.checkpoint import Checkpoints, TrainingState, identity_of, require_same
from holdfast.engine.rank_checkpoints import TorchFiles
from tests.tiny import tiny_bert, tiny_prepared


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", EventLog(tmp_path / "events.jsonl"), TorchFiles())


def parts(value: float) -> dict:
    return {"weights": {"w": torch.full((50,), value)}, "optimizer": {"w/step": torch.tensor(value)}}


def save(checkpoints: Checkpoints, step: int, best: bool = False) -> None:
    checkpoints.save(step, parts(step), TrainingState(), best=best)
    checkpoints.wait()


def test_newest_two_and_best_checkpoints_are_kept(checkpoints, tmp_path):
    for step in (1, 2, 3, 4, 5):
        save(checkpoints, step, best=step == 2)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert kept == ["step-000000002", "step-000000004", "step-000000005"]
    newest, best = checkpoints.load_newest(), checkpoints.load_best()
    assert (newest.step, float(newest.parts["weights"]["w"][0])) == (5, 5.0)
    assert best.step == 2


def test_epoch_data_is_saved_with_its_first_step(checkpoints, tmp_path):
    checkpoints.save(12, parts(12.0), TrainingState(), best=True)
    checkpoints.save(12, parts(12.5), TrainingState(), is_begun=True)
    checkpoints.wait()
    newest, best = checkpoints.load_newest(), checkpoints.load_best()
    assert (newest.step, float(newest.parts["weights"]["w"][0])) == (12, 12.5)
    assert (best.step, float(best.parts["weights"]["w"][0])) == (12, 12.0)
    save(checkpoints, 13)
    assert checkpoints.load_newest().step == 13


def test_full_disk_while_marking_the_best_is_survived(checkpoints, tmp_path, monkeypatch):
    save(checkpoints, 3)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_artifact", full)
    save(checkpoints, 3, best=True)
    failed = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, CheckpointFailed)]
    assert failed[0].is_full


def test_saved_step_is_not_written_again(checkpoints, tmp_path):
    save(checkpoints, 3)
    manifest = tmp_path / "checkpoints" / "step-000000003" / "manifest.json"
    written = manifest.stat().st_mtime_ns
    save(checkpoints, 3, best=True)
    assert manifest.stat().st_mtime_ns == written
    assert checkpoints.load_best().step == 3


def test_failed_save_keeps_the_previous_and_is_reported(checkpoints, tmp_path, monkeypatch):
    save(checkpoints, 1)

    def no_room(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TorchFiles, "write", no_room)
    save(checkpoints, 2)
    assert checkpoints.has_failed
    assert checkpoints.load_newest().step == 1
    failed = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, CheckpointFailed)]
    assert failed[0].is_full
    monkeypatch.undo()
    save(checkpoints, 3)
    assert checkpoints.load_newest().step == 3


def test_two_checkpoints_must_fit_on_the_disk(checkpoints, monkeypatch):
    room = Room(free_bytes=900, total_bytes=10**9, is_out_of_files=False)
    monkeypatch.setattr("holdfast.engine.checkpoint.room_at", lambda folder: room)
    checkpoints.require_room({"weights": {"w": torch.zeros(50)}}, unsaved_bytes=200)
    with pytest.raises(MachineError, match="two checkpoints") as caught:
        checkpoints.require_room({"weights": {"w": torch.zeros(50)}}, unsaved_bytes=400)
    assert "900 bytes free" in caught.value.found
    assert "1.2 kB" in caught.value.found


def test_changed_settings_data_or_model_are_named(tmp_path):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_prepared(tmp_path / "prepared")
    given = {"task": "classify", "model": str(model), "prepared": str(prepared), "run": str(tmp_path)}
    then = json.loads(json.dumps(identity_of(AttemptSettings(**given))))
    require_same(then, identity_of(AttemptSettings(**given, device="cuda", micro_tokens=7, precision="bf16")), tmp_path)
    with pytest.raises(RequestError) as caught:
        require_same(
            then, identity_of(AttemptSettings(**given, lr=1e-3, options={"class_weights": [1, 2, 3]})), tmp_path
        )
    assert "lr: 5e-05" in caught.value.found
    assert "options: {}" in caught.value.found
    assert "seed" not in caught.value.found
    other = tiny_prepared(tmp_path / "other", count=48)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"fingerprint": "another"}))
    tiny_bert(tmp_path / "moved")  # the same weights in another folder
    moved = identity_of(AttemptSettings(**given | {"model": str(tmp_path / "moved"), "prepared": str(other)}))
    assert [name for name in then if then[name] != moved[name]] == ["data"]
