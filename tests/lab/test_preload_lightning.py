"""Lightning scripts, unmodified: killed in the middle of an epoch, they end with the same weights."""

import hashlib
import signal
from pathlib import Path

import pytest

from holdfast.core.events import BadNumbersFound, CheckpointRejected, HookFailed, Resumed, TrainingStopped
from tests.lab.preloaded import SCRIPTS, Preloaded, at_step, has_library

pytestmark = [
    pytest.mark.lab,
    pytest.mark.full,
    pytest.mark.skipif(not has_library("lightning"), reason="lightning is not installed"),
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
def test_kills_in_two_epochs_keep_identical_weights(unbroken, tmp_path, workers):
    for number, step in enumerate((7, 33), start=1):
        settings = {"resume": number > 1, "save_seconds": 0}
        attempt = Preloaded(tmp_path, number, CLASSIFY, "out", f"workers={workers}", **settings)
        attempt.wait_until(at_step(step)).kill()
    last = Preloaded(tmp_path, 3, CLASSIFY, "out", f"workers={workers}", resume=True).finish()
    (resumed,) = last.events(Resumed)
    assert resumed.step >= 31
    assert not last.events(HookFailed)
    assert weights(tmp_path) == unbroken


def test_stop_saves_and_incomplete_checkpoint_is_skipped(unbroken, tmp_path):
    first = Preloaded(tmp_path, 1, CLASSIFY, "out", save_seconds=0).wait_until(at_step(24))
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=60) == 143
    (stopped,) = first.events(TrainingStopped)
    assert stopped["saved"]
    newest = tmp_path / f"checkpoints/fit-1/step-{stopped['step']}.ckpt"
    newest.write_bytes(newest.read_bytes()[:2000])
    second = Preloaded(tmp_path, 2, CLASSIFY, "out", resume=True).finish()
    assert [event.path for event in second.events(CheckpointRejected)] == [str(newest)]
    assert second.events(Resumed)[0].step < stopped.step
    assert weights(tmp_path) == unbroken


def test_nan_ends_the_run(tmp_path):
    script = tmp_path / "nan.py"
    script.write_text(CLASSIFY.read_text().replace("return loss", "return loss * float('nan')"))
    attempt = Preloaded(tmp_path, 1, script, "out", save_seconds=0).finish(code=1)
    assert attempt.events(BadNumbersFound)[0].last_finite_step == 0
    assert "loss is not finite at step 1" in attempt.output.read_text()
