"""What is shown of a training is read from the engine's own events, as they are written."""

import json

from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.runs.follow import Follow


def write(run, number, *events):
    folder = attempt_folder(run, number)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / EVENTS).open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def step(number, at, loss=1.0):
    return {"event": "step", "step": number, "loss": loss, "lr": 1e-4, "norm": 1.0, "time": at}


TRAINING = {"event": "training", "first_step": 0, "steps": 100, "epoch_steps": 50, "time": 0.0}


def test_speed_and_time_left_come_from_recent_steps(tmp_path):
    follow = Follow(tmp_path)
    follow.attempt(1)
    write(tmp_path, 1, TRAINING, *(step(at, at * 2.0) for at in range(10)))
    now = follow.look()
    assert (now.step, now.steps, now.seconds_per_step) == (10, 100, 2.0)
    assert now.seconds_left() == 180.0


def test_a_pause_for_an_evaluation_is_no_slow_step(tmp_path):
    follow = Follow(tmp_path)
    follow.attempt(1)
    evaluated = {"event": "evaluated", "step": 3, "metrics": {"accuracy": 0.5}, "time": 60.0}
    write(tmp_path, 1, TRAINING, *(step(at, float(at)) for at in range(3)), evaluated, step(3, 61.0), step(4, 62.0))
    now = follow.look()
    assert now.seconds_per_step == 1.0
    assert now.metrics == {"accuracy": 0.5}
    assert now.evaluation_seconds == 58.0


def test_half_a_line_is_left_for_the_next_look(tmp_path):
    follow = Follow(tmp_path)
    follow.attempt(1)
    write(tmp_path, 1, TRAINING)
    path = attempt_folder(tmp_path, 1) / EVENTS
    line = json.dumps(step(0, 1.0)) + "\n"
    path.write_text(path.read_text() + line[:20])
    assert follow.look().step == 0
    with path.open("a") as file:
        file.write(line[20:])
    assert follow.look().step == 1


def test_a_later_attempt_goes_on_from_its_checkpoint(tmp_path):
    follow = Follow(tmp_path)
    follow.attempt(1)
    write(tmp_path, 1, TRAINING, *(step(at, float(at)) for at in range(9)))
    follow.look()
    follow.attempt(2)
    write(tmp_path, 2, {"event": "resumed", "step": 5, "time": 20.0}, TRAINING | {"first_step": 5})
    assert follow.look().step == 5


def test_the_beat_counts_steps_that_a_full_disk_keeps_from_the_story(tmp_path):
    follow = Follow(tmp_path)
    follow.attempt(1)
    write(tmp_path, 1, TRAINING, *(step(at, at * 2.0) for at in range(10)))
    assert follow.look(30).step == 30
    assert follow.now.seconds_left() == 140.0
    assert follow.look(5).step == 30
