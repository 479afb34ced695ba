"""When checkpoints of our own are due, on a clock of the test's."""

import json

import pytest
from holdfast_preload import graceful_stop, save_timer, script_settings
from holdfast_preload.save_timer import SaveTimer


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(save_timer, "time", made)
    return made


def test_cheap_saves_happen_every_ten_seconds(attempt, clock):
    rhythm = SaveTimer()
    clock.now += 14
    assert not rhythm.is_due(10)
    clock.now += 2
    assert rhythm.is_due(20)
    rhythm.saved(20, cost_seconds=0.01)
    clock.now += 9
    assert not rhythm.is_due(30)
    clock.now += 2
    assert rhythm.is_due(31)


def test_expensive_save_happens_rarely(attempt, clock):
    rhythm = SaveTimer()
    rhythm.saved(1, cost_seconds=3)
    clock.now += 299
    assert not rhythm.is_due(2)
    clock.now += 2
    assert rhythm.is_due(3)


def test_saving_can_be_turned_off(attempt, clock):
    (attempt / "settings.json").write_text(json.dumps({"may_save": False}))
    script_settings.read(str(attempt))
    rhythm = SaveTimer()
    clock.now += 1e6
    assert not rhythm.is_due(5)


def test_stop_request_is_seen_within_a_second(attempt, clock, monkeypatch):
    rhythm = SaveTimer()
    (attempt / "stop").touch()
    clock.now += 1.1
    assert rhythm.is_due(1)
    assert rhythm.must_stop
    (attempt / "stop").unlink()
    monkeypatch.setattr(graceful_stop, "_is_asked", True)
    assert rhythm.is_due(2)
    assert rhythm.must_stop


def test_first_process_decides_for_all(attempt, clock):
    first, second = SaveTimer(), SaveTimer()
    said: list[list[int]] = []
    clock.now += 61
    assert first.is_due(1, lambda values: said.append(values) or values)
    clock.now -= 61  # the other's clock says something else
    assert second.is_due(1, lambda values: said[0])
    assert first._next_agreement == second._next_agreement
