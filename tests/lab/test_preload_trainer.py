"""HF Trainer scripts, unmodified: killed, they continue from a whole checkpoint and end with the same weights."""

import hashlib
from pathlib import Path

import pytest

from tests.lab.preloaded import SCRIPTS, Preloaded, at_step
from tests.tiny import tiny_bert

pytestmark = pytest.mark.lab
CLASSIFY = SCRIPTS / "hf_classify.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def unbroken(model, tmp_path_factory) -> str:
    run = tmp_path_factory.mktemp("unbroken")
    attempt = Preloaded(run, 1, CLASSIFY, model, "out").finish()
    assert attempt.step() == 36
    return weights(run)


def weights(run: Path) -> str:
    return hashlib.sha256((run / "out/final/model.safetensors").read_bytes()).hexdigest()


def test_killed_in_three_epochs_it_ends_with_the_same_weights(model, unbroken, tmp_path):
    for number, step in enumerate((5, 15, 29), start=1):
        resume = number > 1
        attempt = Preloaded(tmp_path, number, CLASSIFY, model, "out", resume=resume, save_seconds=0)
        attempt.wait_until(at_step(step)).kill()
        if resume:
            assert attempt.events("resumed")
    last = Preloaded(tmp_path, 4, CLASSIFY, model, "out", resume=True).finish()
    (resumed,) = last.events("resumed")
    assert resumed["step"] >= 27
    assert last.step() == 36
    assert weights(tmp_path) == unbroken
