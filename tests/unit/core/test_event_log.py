import json

from holdfast.core.event_log import EventLog, EventTail, find_last, read_events
from holdfast.core.events import CheckpointSaved, StepDone, UnknownEvent, all_events


def test_events_come_back_as_they_were_written(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    written = [StepDone(step=1, loss=0.5, lr=1e-3, norm=2.0), CheckpointSaved(step=1, seconds=0.1, best=True)]
    for event in written:
        log.write(event)
    assert list(read_events(tmp_path / "events.jsonl")) == written


def test_event_of_a_newer_version_is_kept(tmp_path):
    line = {"event": "planet_aligned", "time": 5.0, "planet": "Mars"}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    assert list(read_events(tmp_path / "events.jsonl")) == [
        UnknownEvent(was="planet_aligned", time=5.0, fields={"planet": "Mars"})
    ]


def test_known_event_with_newer_field_is_read(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "step_done", "time": 5.0, "step": 3, "mood": "good"}\n')
    assert list(read_events(tmp_path / "events.jsonl")) == [StepDone(time=5.0, step=3)]


def test_number_that_json_lacks_becomes_none(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write(StepDone(step=1, loss=float("nan")))
    assert [event.loss for event in read_events(tmp_path / "events.jsonl") if isinstance(event, StepDone)] == [None]


def test_torn_line_is_skipped_and_closed_off(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "step_done", "ti')
    EventLog(path).write(StepDone(step=7))
    assert [event.step for event in read_events(path) if isinstance(event, StepDone)] == [7]


def test_tail_gives_only_whole_new_events(tmp_path):
    path = tmp_path / "events.jsonl"
    log, tail = EventLog(path), EventTail(path)
    log.write(StepDone(step=1))
    assert [event.step for event in tail.read() if isinstance(event, StepDone)] == [1]
    with path.open("ab") as file:
        file.write(b'{"event": "step_done", "time": 1')
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b'.0, "step": 2}\n')
    assert [event.step for event in tail.read() if isinstance(event, StepDone)] == [2]


def test_last_event_of_a_kind_is_found(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for step in range(3):
        log.write(StepDone(step=step))
        log.write(CheckpointSaved(step=step))
    assert find_last(path, StepDone).step == 2
    assert find_last(path, UnknownEvent) is None
    assert find_last(tmp_path / "missing", StepDone) is None


def test_every_event_says_what_it_means():
    for kind in all_events():
        assert kind.__doc__, kind
