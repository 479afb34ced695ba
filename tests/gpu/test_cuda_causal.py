"""On a CUDA card: a language model learns what it learns on the CPU, and a run cut in two ends bit for bit the same."""

import hashlib

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA card here; these run on a machine that has one", allow_module_level=True)

from holdfast.core.event_log import read_events
from holdfast.core.events import StepDone
from holdfast.core.runfolder import EVENTS, model_folder
from tests.lab.test_engine_resume import finish, start, wait_for_step
from tests.tiny import tiny_attempt, tiny_instructions, tiny_llama

CARD = {"device": "cuda", "precision": "bf16"}
LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return tiny_llama(folder / "model"), tiny_instructions(folder / "prepared")


def test_language_model_on_card_matches_cpu(parts, tmp_path):
    losses = []
    plain = {"task": "causal", "epochs": 1, "options": {"samples": 0}}
    for name, more in (("cpu", {}), ("card", CARD), ("card, split", CARD | {"micro_tokens": 100})):
        attempt = tiny_attempt(tmp_path / name, *parts, **plain, **more)
        finish(attempt)
        losses.append([event.loss for event in read_events(attempt / EVENTS) if isinstance(event, StepDone)])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[2] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize(
    ("lora", "micro_tokens"),
    [(None, 16_384), (LORA, 16_384), (LORA, 100)],
    ids=["full, as graphs", "LoRA, as graphs", "LoRA, split"],
)
def test_interrupted_language_model_has_identical_weights(parts, tmp_path, lora, micro_tokens):
    wanted = {"task": "causal", "options": {"lora": lora, "samples": 1}, "micro_tokens": micro_tokens, **CARD}
    finish(tiny_attempt(tmp_path / "whole", *parts, **wanted))
    attempt = tiny_attempt(tmp_path / "cut", *parts, save_seconds=0, **wanted)
    process = start(attempt)
    wait_for_step(attempt, 17)
    process.kill()
    process.communicate(timeout=30)
    finish(tiny_attempt(tmp_path / "cut", *parts, number=2, **wanted))
    sums = [
        hashlib.sha256((model_folder(tmp_path / name) / "model.safetensors").read_bytes()).hexdigest()
        for name in ("whole", "cut")
    ]
    assert sums[0] == sums[1]
