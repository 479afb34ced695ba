"""When the proof kills the first steps: enough of them, and some that are not saved."""

import json

import pytest

from holdfast.core.old_events import NewEvents
from holdfast.runs.first_steps import Progress, steps_wanted


def progress_after(wanted: int, *events: tuple[str, int]) -> Progress:
    progress = Progress(wanted)
    for name, step in events:
        progress.take({"event": name, "step": step})
    return progress


@pytest.mark.parametrize(
    ("done", "saved", "is_enough"),
    [
        (8, 6, True),
        (8, 7, False),  # nothing much would be repeated
        (8, None, False),  # nothing to go on from
        (7, 3, False),  # too few to be measured
        (15, 14, False),
        (16, 15, True),  # each step is saved: one that is not has to do
    ],
)
def test_enough_steps_are_done_and_some_not_saved(done, saved, is_enough):
    events = [("step", step) for step in range(done)]
    if saved is not None:
        events.insert(saved, ("saved", saved))
    assert progress_after(8, *events).is_enough is is_enough


def test_few_steps_of_a_short_run_and_never_many():
    assert [steps_wanted(steps) for steps in (10, 1000, 100_000)] == [8, 20, 100]


def test_new_events_come_once_and_whole(tmp_path):
    file = tmp_path / "events.jsonl"
    news = NewEvents(file)
    assert news.read() == []
    lines = [json.dumps({"event": "step", "step": step}).encode() + b"\n" for step in range(3)]
    file.write_bytes(lines[0] + lines[1][:9])
    assert [event["step"] for event in news.read()] == [0]
    assert news.read() == []
    file.write_bytes(b"".join(lines))
    assert [event["step"] for event in news.read()] == [1, 2]
