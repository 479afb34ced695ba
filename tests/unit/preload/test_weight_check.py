"""When the weights are looked at, and what is told of them."""

import pytest
import torch
from holdfast_preload import weight_check
from holdfast_preload.beat_page import BEAT
from holdfast_preload.weight_check import WeightCheck

from holdfast.core.event_log import read_events
from holdfast.core.events import HookFailed, WeightsChecked


@pytest.fixture
def watched(attempt, monkeypatch):
    """A model with an optimizer after its first step, and what looks after its weights."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    monkeypatch.setattr(weight_check, "optimizers", {optimizer})
    monkeypatch.setattr(BEAT, "step", 1)
    return model, WeightCheck(), attempt


def told(attempt):
    return [event for event in read_events(attempt / "events.jsonl") if isinstance(event, WeightsChecked)]


def test_nan_is_reported_once_with_the_last_good_step(watched, monkeypatch):
    model, seen, attempt = watched
    seen.check_now()
    assert told(attempt) == []
    model.bias.data.fill_(float("nan"))
    for step in (70, 80):
        monkeypatch.setattr(BEAT, "step", step)
        seen.check_now()
    (event,) = told(attempt)
    assert (event.is_nan, event.step, event.last_finite_step) == (True, 70, 1)


def test_restored_weights_are_reported_as_finite(watched, monkeypatch):
    model, seen, attempt = watched
    model.bias.data.fill_(float("nan"))
    seen.check_now()
    model.bias.data.zero_()
    model.zero_grad()  # as a loop does: what was chosen is still looked at
    seen.check_now()
    assert [event.is_nan for event in told(attempt)] == [True, False]


def test_infinite_gradients_and_untrained_weights_are_ignored(watched):
    model, seen, attempt = watched
    model.weight.grad.fill_(float("inf"))
    model.bias.grad = None
    model.bias.data.fill_(float("nan"))
    seen.check_now()
    assert told(attempt) == []


def test_expensive_check_is_rare(watched, monkeypatch):
    _, seen, _ = watched
    clock = iter([0.0, 1.0, 1.001])  # the first look loads kernels; the second, timed, takes a millisecond
    monkeypatch.setattr(weight_check, "perf_counter", lambda: next(clock))
    seen.check()
    assert seen.next_step == pytest.approx(1 + 2000, abs=1)
    monkeypatch.setattr(BEAT, "step", 1999)
    seen.check()  # asks no clock


def test_failing_check_is_reported_once(watched, monkeypatch):
    _, seen, attempt = watched
    monkeypatch.setattr(torch, "isnan", lambda _: 1 / 0)
    seen.check_now()
    seen.check_now()
    failed = [event for event in read_events(attempt / "events.jsonl") if isinstance(event, HookFailed)]
    assert len(failed) == 1
