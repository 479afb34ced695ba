"""Two towers: the loss of a plain loop, the same gradient however a step is split, near-misses, and what is exported."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from holdfast.core.errors import RequestError
from holdfast.data.shards import open_tokens
from holdfast.engine.order import Order
from holdfast.engine.settings import Settings
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_bert, tiny_questions, tiny_vectors


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_questions(folder / "prepared")


def settings_for(parts, **more) -> Settings:
    model, prepared = parts
    given = {"task": "two-tower", "run": "", "batch_size": 16, "lr": 1e-3}
    return Settings(model=str(model), prepared=str(prepared), **(given | more))


def gradients(task, step: int = 3) -> tuple[float, dict[str, torch.Tensor]]:
    order = Order(task.lengths, 16, 42)
    task.model.zero_grad()
    loss = float(task.forward_backward(step, order.examples(step)))
    return loss, {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}


def with_micro_tokens(task, micro_tokens: int):
    object.__setattr__(task._settings, "micro_tokens", micro_tokens)
    return task


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_the_gradient_is_the_same_however_the_step_is_split(parts, towers, packing):
    options = {"towers": towers, "symmetric": True, "learn_temperature": True}
    task = load_task(settings_for(parts, options=options, packing=packing))
    if not packing:  # padded dropout depends on the padding
        for module in task.model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
        for body in (tower.body for tower in task.model.towers):
            body.config.attention_probs_dropout_prob = 0.0
            for layer in body.encoder.layer:
                layer.attention.self.dropout.p = 0.0
    loss, whole = gradients(with_micro_tokens(task, 10**6))
    assert "log_scale" in whole
    for micro_tokens in (200, 50, 1):
        split_loss, split = gradients(with_micro_tokens(task, micro_tokens))
        assert split_loss == pytest.approx(loss, rel=1e-5)
        assert split.keys() == whole.keys()
        for name in whole:
            torch.testing.assert_close(split[name], whole[name], rtol=1e-3, atol=2e-6)
