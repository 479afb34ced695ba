"""A Trainer in two processes: they save together by the clock, stop together, and continue to the same weights."""

import hashlib
import signal
from pathlib import Path

import pytest

from holdfast.core.events import CheckpointRejected, Resumed, TrainingStopped
from tests.lab.preloaded import SCRIPTS, Preloaded, at_step
from tests.tiny import tiny_bert

pytestmark = [pytest.mark.lab, pytest.mark.full]
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611")
OPTIONS = ("use_cpu=true", 'ddp_backend="gloo"', "num_train_epochs=6")


def weights(run: Path) -> str:
    return hashlib.sha256((run / "out/final/model.safetensors").read_bytes()).hexdigest()


def test_two_ranks_stop_together_and_end_with_the_same_weights(tmp_path):
    words = (*TORCHRUN, SCRIPTS / "hf_classify.py", tiny_bert(tmp_path / "model"), "out", *OPTIONS)
    Preloaded(tmp_path / "a", 1, *words).finish()
    first = Preloaded(tmp_path / "b", 1, *words, save_seconds=0).wait_until(at_step(8))
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=120)
    assert len({event.step for event in first.events(TrainingStopped)}) == 1
    second = Preloaded(tmp_path / "b", 2, *words, resume=True).finish()
    assert {event.step for event in second.events(Resumed)} == {first.events(TrainingStopped)[0].step}
    assert not second.events(CheckpointRejected)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
