"""On a CUDA card: two towers learn what the CPU learns, and a run cut in two ends bit for bit the same."""

import hashlib
import json

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA card here; these run on a machine that has one", allow_module_level=True)

import signal

from holdfast.core.event_log import read_events
from holdfast.core.events import StepDone
from holdfast.core.runfolder import EVENTS, model_folder
from tests.lab.test_engine_resume import finish, start, wait_for_step
from tests.tiny import tiny_attempt, tiny_bert, tiny_questions

CARD = {"device": "cuda", "precision": "bf16"}
TASK = {"task": "two-tower", "options": {"mining": {"from_epoch": 1, "last_rank": 20}}, "micro_tokens": 200}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_questions(folder / "prepared")


def test_two_tower_on_card_matches_cpu(parts, tmp_path):
    config = parts[0] / "config.json"
    plain = json.loads(config.read_text())
    config.write_text(json.dumps(plain | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    losses = []
    for name, more in (("cpu", {}), ("card", CARD)):
        attempt = tiny_attempt(tmp_path / name, *parts, task="two-tower", epochs=1, **more)
        finish(attempt)
        losses.append([event.loss for event in read_events(attempt / EVENTS) if isinstance(event, StepDone)])
    config.write_text(json.dumps(plain))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_interrupted_two_tower_has_identical_weights(parts, tmp_path):
    finish(tiny_attempt(tmp_path / "whole", *parts, **TASK, **CARD))
    attempt = tiny_attempt(tmp_path / "cut", *parts, save_seconds=0, **TASK, **CARD)
    process = start(attempt)
    wait_for_step(attempt, 17)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    finish(tiny_attempt(tmp_path / "cut", *parts, number=2, **TASK, **CARD))
    sums = [
        hashlib.sha256((model_folder(tmp_path / name) / "model.safetensors").read_bytes()).hexdigest()
        for name in ("whole", "cut")
    ]
    assert sums[0] == sums[1]
