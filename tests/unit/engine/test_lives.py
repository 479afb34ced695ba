import json
import math

from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.engine.lives import mean_life_seconds


def write_attempt(run, number, *times, last="step"):
    attempt = attempt_folder(run, number)
    attempt.mkdir(parents=True)
    events = [{"event": "step", "time": at} for at in times]
    if events:
        events[-1]["event"] = last
    (attempt / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events))


def test_the_mean_is_of_the_attempts_before_this_one_without_the_time_between_them(tmp_path):
    assert mean_life_seconds(tmp_path) == math.inf
    write_attempt(tmp_path, 1, 1_000.0, 1_040.0, 1_100.0)
    assert mean_life_seconds(tmp_path) == math.inf
    write_attempt(tmp_path, 2, 9_000.0, 9_200.0)
    write_attempt(tmp_path, 3)
    write_attempt(tmp_path, 4, 20_000.0)
    assert mean_life_seconds(tmp_path) == (100 + 200 + 0) / 3


def test_an_attempt_that_saved_when_it_was_stopped_has_lost_nothing(tmp_path):
    write_attempt(tmp_path, 1, 1_000.0, 1_500.0, last="stopped")
    write_attempt(tmp_path, 2)
    assert mean_life_seconds(tmp_path) == math.inf
    write_attempt(tmp_path, 3, 3_000.0, 3_100.0)
    write_attempt(tmp_path, 4)
    assert mean_life_seconds(tmp_path) == (500 + 0 + 100) / 2
