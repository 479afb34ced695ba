import json
import math

from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.engine.lives import mean_life_seconds


def test_lives_are_counted_from_the_first_event_of_the_run(tmp_path):
    assert mean_life_seconds(tmp_path, 1_000.0) == math.inf
    for number, begun in ((1, 1_000.0), (2, 1_100.0), (3, None)):
        attempt = attempt_folder(tmp_path, number)
        attempt.mkdir(parents=True)
        if begun:
            (attempt / EVENTS).write_text(json.dumps({"event": "training", "time": begun}) + "\n")
        if number == 1:
            assert mean_life_seconds(tmp_path, 1_050.0) == math.inf
    assert mean_life_seconds(tmp_path, 1_300.0) == 150.0
    assert mean_life_seconds(tmp_path, 900.0) == 0.0  # a clock that was set back
