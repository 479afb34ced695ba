"""Lightning scripts, unmodified: killed in the middle of an epoch, they end with the same weights."""

import hashlib
from pathlib import Path

import pytest

from tests.lab.preloaded import SCRIPTS, Preloaded, at_step, has_library

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not has_library("lightning.pytorch"), reason="lightning is not installed"),
]
CLASSIFY = SCRIPTS / "lightning_classify.py"


def weights(run: Path) -> str:
    return hashlib.sha256((run / "out/final.pt").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> str:
    run = tmp_path_factory.mktemp("unbroken")
    attempt = Preloaded(run, 1, CLASSIFY, "out").finish()
    assert (attempt.step(), attempt.furthest().steps) == (60, 60)
    return weights(run)


@pytest.mark.parametrize("workers", [0, 1])
def test_killed_in_two_epochs_it_ends_with_the_same_weights(unbroken, tmp_path, workers):
    for number, step in enumerate((7, 33), start=1):
        settings = {"resume": number > 1, "save_seconds": 0}
        attempt = Preloaded(tmp_path, number, CLASSIFY, "out", f"workers={workers}", **settings)
        attempt.wait_until(at_step(step)).kill()
    last = Preloaded(tmp_path, 3, CLASSIFY, "out", f"workers={workers}", resume=True).finish()
    (resumed,) = last.events("resumed")
    assert resumed["step"] >= 31
    assert not last.events("preload failed")
    assert weights(tmp_path) == unbroken
