"""Which checkpoints of earlier attempts a training may continue from."""

import json

from holdfast_preload.earlier_saves import earlier_events, saved_by


def saving(train, step, path, time):
    return {"event": "checkpoint_started", "train": train, "step": step, "path": path, "time": time}


def test_checkpoints_of_the_same_training_furthest_first():
    told = [saving(1, 10, "a", 1.0), saving(1, 20, "b", 2.0), saving(2, 5, "c", 3.0)]
    assert [saved.path for saved in saved_by(1, told)] == ["b", "a"]
    assert [saved.path for saved in saved_by(2, told)] == ["c"]


def test_overwritten_folder_belongs_to_the_next_training():
    told = [saving(1, 10, "a", 1.0), saving(2, 10, "a", 2.0)]
    assert saved_by(1, told) == []


def test_checkpoints_after_nan_are_skipped():
    bad = {"event": "bad_numbers_found", "train": 1, "step": 30, "last_finite_step": 10, "time": 3.0}
    told = [saving(1, 10, "a", 1.0), saving(1, 20, "b", 2.0), bad, saving(1, 25, "c", 4.0)]
    assert [saved.path for saved in saved_by(1, told)] == ["c", "a"]


def test_half_lines_and_later_attempts_are_skipped(tmp_path):
    for number in ("01", "02", "03"):
        folder = tmp_path / number
        folder.mkdir()
        (folder / "events.jsonl").write_text(json.dumps(saving(1, int(number), number, 1.0)) + '\n{"event": "sav')
    assert [event["path"] for event in earlier_events(str(tmp_path / "02"))] == ["01"]


def test_hundredth_attempt_reads_all_earlier_ones(tmp_path):
    for number in (9, 11, 99, 100, 101):
        folder = tmp_path / f"{number:02d}"
        folder.mkdir()
        (folder / "events.jsonl").write_text(json.dumps(saving(1, number, str(number), 1.0)) + "\n")
    assert [event["path"] for event in earlier_events(str(tmp_path / "100"))] == ["9", "11", "99"]
