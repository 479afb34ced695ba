import json
import math

from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.engine.lives import mean_life_seconds


def test_the_mean_is_of_the_attempts_before_this_one_without_the_time_between_them(tmp_path):
    assert mean_life_seconds(tmp_path) == math.inf
    for number, times in enumerate(([1_000.0, 1_040.0, 1_100.0], [9_000.0, 9_200.0], [], [20_000.0]), start=1):
        attempt = attempt_folder(tmp_path, number)
        attempt.mkdir(parents=True)
        lines = [json.dumps({"event": "step", "time": at}) + "\n" for at in times]
        (attempt / EVENTS).write_text("".join(lines))
        if number == 1:
            assert mean_life_seconds(tmp_path) == math.inf
    assert mean_life_seconds(tmp_path) == (100 + 200 + 0) / 3
