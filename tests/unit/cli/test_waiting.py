"""A line that says what is being done: at once where it always takes seconds, later where it may be quick."""

import pytest

from holdfast.cli import waiting
from holdfast.cli.waiting import Waiting


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def test_what_is_quick_is_not_told_of(clock, capsys):
    screen = Waiting()
    screen.show("reading", 1, 2)
    clock[0] += 5
    screen.show("reading", 2, 2)
    assert capsys.readouterr().err == ""


def test_what_always_takes_seconds_is_told_of_at_once_and_then_now_and_then(clock, capsys):
    screen = Waiting(says_start=True)
    for _ in range(30):
        screen.show("loading torch", 0, None)
        clock[0] += 0.5
    assert capsys.readouterr().err.splitlines() == ["... loading torch, 0 s", "... loading torch, 10 s"]


def test_quiet_is_quiet(clock, capsys):
    screen = Waiting(quiet=True, says_start=True)
    screen.show("loading torch", 0, None)
    assert capsys.readouterr().err == ""
