"""The engine on a pretended Apple GPU: every task computes what it computes on the CPU, with ops that MPS has."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast.core.prepared import Manifest
from holdfast.data.shards import write_manifest
from holdfast.engine.attempt_settings import AttemptSettings, read_attempt_settings
from holdfast.engine.data_order import DataOrder
from holdfast.engine.fast.rng import without_dropout
from holdfast.engine.optim import clip_gradients, make_optimizer
from holdfast.engine.tasks import load_task
from tests.darwin.pretended_mps import DeviceLog, pretended_mps
from tests.tiny import SPLITS, tiny_attempt, tiny_bert, tiny_instructions, tiny_llama, tiny_prepared, tiny_questions

torch.set_num_threads(1)

STEPS = 12
PREPARE = MappingProxyType({"classify": tiny_prepared, "causal": tiny_instructions, "two-tower": tiny_questions})
KINDS = {
    "classify": {"task": "classify"},
    "padded": {"task": "classify", "packing": False},
    "several labels": {"task": "classify"},
    "causal": {"task": "causal", "micro_tokens": 150},
    "lora": {"task": "causal", "options": {"lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}}},
    "one text at a time": {"task": "causal", "packing": False, "batch_size": 2},
    "two-tower": {"task": "two-tower", "options": {"mining": {"from_epoch": 0}}},
    "cached loss": {"task": "two-tower", "micro_tokens": 150},
}


@dataclass(frozen=True)
class Trained:
    """What some steps gave."""

    losses: list[float]
    norms: list[float]
    metrics: dict[str, float]


@pytest.fixture
def settings_of(tmp_path) -> Callable[[str], AttemptSettings]:
    def make(kind: str) -> AttemptSettings:
        given = KINDS[kind]
        model = (tiny_llama if given["task"] == "causal" else tiny_bert)(tmp_path / "model")
        prepared = PREPARE[given["task"]](tmp_path / "prepared")
        if kind == "several labels":
            _give_several_labels(prepared)
        return read_attempt_settings(tiny_attempt(tmp_path / "run", model, prepared, **given))

    return make


def _give_several_labels(prepared: Path) -> None:
    for split in ("train", "validation"):
        labels = np.load(prepared / f"{split}.labels.npy")
        np.save(prepared / f"{split}.labels.npy", np.eye(3, dtype=np.float32)[labels])
    labels = ("a", "b", "c")
    write_manifest(prepared, Manifest(task="classify", labels=labels, splits=SPLITS, multi_label=True))


def train(
    settings: AttemptSettings, log: DeviceLog | None = None, steps: int = STEPS, *, drops: bool = False
) -> Trained:
    """Train some steps as the loop does, and evaluate."""
    task = load_task(settings)
    order = DataOrder(task.lengths, settings.batch_size, settings.seed)
    optimizer = make_optimizer(task.model, settings)
    task.begin_epoch(0)
    losses, norms = [], []
    with without_dropout(nn.Module() if drops else task.model):
        for step in range(steps):
            if log:
                log.step = step + 1
            losses.append(float(task.forward_backward(step, order.examples(step))))
            norms.append(float(clip_gradients(task.model.parameters(), settings.max_grad_norm)))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    if log:
        log.step = 0
    return Trained(losses, norms, task.evaluate("validation"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_trains_on_mps_as_on_the_cpu(kind, settings_of):
    """Without buckets each step brings 20 to 100 new shapes, and the second half as many as the first."""
    settings = settings_of(kind)
    expected = train(settings)
    with pretended_mps() as log:
        found = train(replace(settings, device="mps"), log)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-3)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=2e-2)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-2)
    assert log.asynchronous_copies == 0
    new = [log.new_shapes[step] for step in range(1, STEPS + 1)]
    assert sum(new[STEPS // 2 :]) <= 0.3 * sum(new)
    assert len(log.shapes) < 1000


@pytest.mark.parametrize("kind", ["classify", "two-tower", "causal"])
def test_few_copies_and_waits_in_a_step(kind, settings_of):
    settings = replace(settings_of(kind), device="mps", micro_tokens=16_384)
    with pretended_mps() as log:
        train(settings, log, steps=4, drops=True)
    assert max(log.copies[step] for step in range(1, 5)) <= 4
    assert max(log.waits[step] for step in range(1, 5)) == 2  # the loss and the norm


@pytest.mark.parametrize("kind", ["classify", "causal", "two-tower"])
def test_step_and_dropout_repeat_exactly(kind, settings_of):
    settings = replace(settings_of(kind), device="mps")
    with pretended_mps():
        once, again = (train(settings, steps=3, drops=True) for _ in range(2))
        without = train(settings, steps=3)
    assert once == again
    assert once.losses != without.losses or kind == "causal"  # a Llama has no dropout


@pytest.mark.parametrize("kind", ["classify", "two-tower"])
def test_recomputed_layers_drop_the_same_values(kind, settings_of):
    settings = replace(settings_of(kind), device="mps")
    with pretended_mps():
        expected = train(settings, steps=3, drops=True)
        found = train(replace(settings, gradient_checkpointing=True), steps=3, drops=True)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5)


def test_answers_are_those_of_the_cpu(settings_of):
    settings = settings_of("causal")
    expected = load_task(settings).samples()
    with pretended_mps() as log:
        task = load_task(replace(settings, device="mps"))
        before = len(log.shapes)
        assert task.samples() == expected
    assert len(log.shapes) - before < 150  # and not as many for each token


def test_pretended_device_refuses_what_mps_lacks():
    with pretended_mps():
        x = torch.ones(4, 3, device="mps")
        with pytest.raises(NotImplementedError, match="segment_reduce"):
            torch.segment_reduce(x, "mean", lengths=torch.tensor([1, 3], device="mps"), unsafe=True)
        with pytest.raises(TypeError, match="float64"):
            x.double()
        given = torch.empty(2, 4, 4, device="mps")
        assert torch.baddbmm(given, given + 1, given + 1, beta=0).cpu().isnan().all()


def test_pretended_device_has_its_own_generator():
    with pretended_mps():
        x = torch.ones(64, device="mps")
        torch.manual_seed(1)
        first, second = functional.dropout(x), functional.dropout(x)
        torch.manual_seed(1)
        assert functional.dropout(x).cpu().equal(first.cpu())
        assert not first.cpu().equal(second.cpu())
