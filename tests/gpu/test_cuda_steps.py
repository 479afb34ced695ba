"""On a CUDA card: captured steps learn what the CPU learns, and a resumed run ends bit for bit the same."""

import hashlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA card here; these run on a machine that has one", allow_module_level=True)

import json

from holdfast.core.event_log import read_events
from holdfast.core.events import CheckpointSaved, StepDone
from holdfast.core.runfolder import EVENTS, model_folder
from tests.tiny import tiny_attempt, tiny_bert, tiny_prepared

CARD = {"device": "cuda", "precision": "bf16"}


def train(attempt, **more) -> list[float]:
    found = subprocess.run([sys.executable, "-m", "holdfast.engine", str(attempt)], capture_output=True, text=True)
    assert found.returncode in (0, 143), found.stderr
    return [event.loss for event in read_events(attempt / EVENTS) if isinstance(event, StepDone)]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_prepared(folder / "prepared")


@pytest.fixture
def without_dropout(parts):
    config = parts[0] / "config.json"
    plain = config.read_text()
    config.write_text(json.dumps(json.loads(plain) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    yield
    config.write_text(plain)


@pytest.mark.usefixtures("without_dropout")
def test_classifier_on_card_matches_cpu(parts, tmp_path):
    on_cpu = train(tiny_attempt(tmp_path / "cpu", *parts))
    on_card = train(tiny_attempt(tmp_path / "card", *parts, **CARD))
    assert on_card == pytest.approx(on_cpu, rel=0.05)


def test_float32_dropout_on_card_matches_cpu(parts, tmp_path):
    on_cpu = train(tiny_attempt(tmp_path / "cpu", *parts))
    on_card = train(tiny_attempt(tmp_path / "card", *parts, device="cuda", precision="fp32"))
    assert on_card == pytest.approx(on_cpu, rel=2e-3)


def test_captured_steps_drop_values_too(parts, tmp_path, request):
    dropped = train(tiny_attempt(tmp_path / "dropped", *parts, **CARD))
    request.getfixturevalue("without_dropout")
    assert dropped != pytest.approx(train(tiny_attempt(tmp_path / "whole", *parts, **CARD)), rel=1e-4)


def test_interrupted_classifier_has_identical_weights(parts, tmp_path):
    train(tiny_attempt(tmp_path / "whole", *parts, **CARD))
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.engine", str(tiny_attempt(tmp_path / "cut", *parts, save_seconds=0, **CARD))]
    )
    attempt = tmp_path / "cut" / "attempts" / "01"
    while (
        process.poll() is None
        and sum(isinstance(event, CheckpointSaved) for event in read_events(attempt / EVENTS)) < 3
    ):
        pass
    process.kill()
    process.wait()
    train(tiny_attempt(tmp_path / "cut", *parts, number=2, **CARD))
    sums = [
        hashlib.sha256((model_folder(tmp_path / name) / "model.safetensors").read_bytes()).hexdigest()
        for name in ("whole", "cut")
    ]
    assert sums[0] == sums[1]
