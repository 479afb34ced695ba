"""`holdfast train --folds`: one model for each fold, also after a kill, and the mean and spread of their scores."""

import json
import statistics

import pytest

from holdfast.core.scores import read_metrics
from holdfast.data.shards import open_array
from holdfast.runs.state import read_state
from tests.lab.trained import finish, make_world, start, steps_done, train, wait_until, weights

pytestmark = pytest.mark.lab
FOLDS = ("--folds", "2", "--prove", "never", "--validation-share", "0.05")


def test_killed_folds_continue_to_the_same_models(tmp_path):
    world = make_world(tmp_path)
    whole, killed = world / "whole", world / "killed"
    finish(train(world, whole, *FOLDS))
    process = train(world, killed, *FOLDS)
    wait_until(lambda: (killed / "fold-2").is_dir() and steps_done(killed / "fold-2") >= 10, process)
    process.kill()
    process.communicate(timeout=60)
    first = (killed / "fold-1" / "model" / "model.safetensors").stat().st_mtime_ns
    finish(start(world, "resume", str(killed)))
    assert (killed / "fold-1" / "model" / "model.safetensors").stat().st_mtime_ns == first
    for fold in ("fold-1", "fold-2"):
        assert weights(killed / fold) == weights(whole / fold)
    assert read_state(killed).state == "finished"
    tested = [open_array(whole / fold / "prepared", "test.rows") for fold in ("fold-1", "fold-2")]
    assert sorted([*tested[0], *tested[1]]) == list(range(2, 602))
    accuracies = [read_metrics(whole / fold).splits["test"].scores["accuracy"] for fold in ("fold-1", "fold-2")]
    found = read_metrics(killed).splits["test"]
    assert found.scores["accuracy"] == pytest.approx(statistics.mean(accuracies))
    assert (found.spread["accuracy"], found.folds) == (pytest.approx(statistics.stdev(accuracies)), 2)
    assert json.loads((killed / "result.json").read_text())["metrics"]["test"]["accuracy"] == found.scores["accuracy"]
