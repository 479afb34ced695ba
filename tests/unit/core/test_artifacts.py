"""Artifacts and events: whole or absent, and JSON that every reader takes."""

import json
import os
import threading
from pathlib import Path

import pytest

from holdfast.core.artifacts import to_json, write_artifact
from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import StepDone


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    value = {"loss": float("nan"), "best": [float("inf"), -float("inf"), 1.5]}
    wanted = {"loss": None, "best": [None, None, 1.5]}
    assert json.loads(write_artifact(tmp_path, "metrics.json", value).read_text()) == wanted
    assert json.loads(to_json(value)) == wanted


def test_two_writers_of_one_artifact_never_leave_half_of_it(tmp_path):
    def write(letter: str) -> None:
        for _ in range(60):
            write_artifact(tmp_path, "plan.json", {"text": letter * 5000})

    writers = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / "plan.json").exists():
            assert len(set(json.loads((tmp_path / "plan.json").read_text())["text"])) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_failed_write_keeps_the_old_file(tmp_path):
    write_artifact(tmp_path, "plan.json", {"a": 1})
    with pytest.raises(TypeError):
        write_artifact(tmp_path, "plan.json", {"a": object()})
    assert json.loads((tmp_path / "plan.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_full_disk_loses_events_and_nothing_else(tmp_path, monkeypatch, capsys):
    events, plain = EventLog(tmp_path / "events.jsonl", is_logged=True), os.write
    events.write(StepDone(step=1))
    monkeypatch.setattr(os, "write", lambda file, content: plain(file, content[:9]))  # so much still fits
    events.write(StepDone(step=2))
    monkeypatch.setattr(os, "write", _full)
    events.write(StepDone(step=3))
    monkeypatch.setattr(os, "write", plain)
    events.write(StepDone(step=4))
    assert [event.step for event in read_events(tmp_path / "events.jsonl")] == [1, 4]
    told = capsys.readouterr().err
    assert '"step":2' in told
    assert '"step":3' in told


def test_events_that_are_lost_do_not_fill_a_screen(tmp_path, monkeypatch, capsys):
    events = EventLog(tmp_path / "events.jsonl")
    monkeypatch.setattr(os, "write", _full)
    events.write(StepDone(step=1))
    assert capsys.readouterr().err == ""


def _full(*args: object) -> int:
    raise OSError(28, "No space left on device")


def test_event_file_is_closed_with_its_writer(tmp_path):
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        EventLog(tmp_path / "events.jsonl").write(StepDone(step=1))
    assert len(list(Path("/dev/fd").iterdir())) == before
    writer = EventLog(tmp_path / "events.jsonl")
    writer.close()
    writer.close()
