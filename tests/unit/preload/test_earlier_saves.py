"""Which checkpoints of earlier attempts a training may continue from."""

import json

from holdfast_preload.earlier_saves import earlier_events, saved_by


def saving(train, step, path, time):
    return {"event": "checkpoint_started", "train": train, "step": step, "path": path, "time": time}


def test_only_those_of_the_same_training_the_furthest_first():
    told = [saving(1, 10, "a", 1.0), saving(1, 20, "b", 2.0), saving(2, 5, "c", 3.0)]
    assert [saved.path for saved in saved_by(1, told)] == ["b", "a"]
    assert [saved.path for saved in saved_by(2, told)] == ["c"]


def test_overwritten_folder_belongs_to_the_next_training():
    told = [saving(1, 10, "a", 1.0), saving(2, 10, "a", 2.0)]
    assert saved_by(1, told) == []


def test_none_from_after_the_numbers_went_bad():
    bad = {"event": "bad_numbers_found", "train": 1, "step": 30, "last_finite_step": 10, "time": 3.0}
    told = [saving(1, 10, "a", 1.0), saving(1, 20, "b", 2.0), bad, saving(1, 25, "c", 4.0)]
    assert [saved.path for saved in saved_by(1, told)] == ["c", "a"]


def test_half_a_line_and_later_attempts_are_passed_over(tmp_path):
    for number in ("01", "02", "03"):
        folder = tmp_path / number
        folder.mkdir()
        (folder / "events.jsonl").write_text(json.dumps(saving(1, int(number), number, 1.0)) + '\n{"event": "sav')
    assert [event["path"] for event in earlier_events(str(tmp_path / "02"))] == ["01"]


def test_the_hundredth_attempt_knows_all_before_it(tmp_path):
    for number in (9, 11, 99, 100, 101):
        folder = tmp_path / f"{number:02d}"
        folder.mkdir()
        (folder / "events.jsonl").write_text(json.dumps(saving(1, number, str(number), 1.0)) + "\n")
    assert [event["path"] for event in earlier_events(str(tmp_path / "100"))] == ["9", "11", "99"]
