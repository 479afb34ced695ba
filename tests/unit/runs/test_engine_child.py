"""How the engine's processes are started: the same environment for proof and attempts, a spare only where it fits."""

import json

import pytest

from holdfast.core.runfolder import SETTINGS
from holdfast.runs import engine_child
from holdfast.runs.engine_child import ENGINE, EngineChildren


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """Every spare that would have been started or ended."""
    done: list[str] = []
    monkeypatch.setattr(engine_child.Spare, "make", lambda self: done.append("made"))
    monkeypatch.setattr(engine_child.Spare, "close", lambda self: done.append("closed"))
    monkeypatch.setattr(engine_child.sys, "platform", "linux")
    monkeypatch.setattr(engine_child, "_has_room", lambda: True)
    return done


def test_settings_take_the_small_names_and_the_environment_the_capitals(tmp_path):
    attempt = tmp_path / "attempts" / "01"
    attempt.mkdir(parents=True)
    changes = {"threads": 1, "MKL_DEBUG": "1"}
    launch = EngineChildren(tmp_path).launch(attempt, {"device": "cpu", "threads": 2}, changes)
    assert json.loads((attempt / SETTINGS).read_text()) == {"device": "cpu", "threads": 1}
    assert launch.environment["MKL_DEBUG"] == "1"
    assert launch.environment["HF_HUB_OFFLINE"] == "1"
    assert launch.command[1:] == ("-m", ENGINE, str(attempt))
    assert launch.spare is not None


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
def test_a_device_of_its_own_gets_a_new_process(tmp_path, made, device):
    launch = EngineChildren(tmp_path).launch(tmp_path, {"device": device}, {})
    assert launch.spare is None
    assert made == ["closed"]


def test_a_spare_is_made_once_after_a_while_of_steps(tmp_path, made, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(engine_child.time, "monotonic", lambda: now[0])
    children, heard = EngineChildren(tmp_path), []
    hear = children.listening(lambda event, details: heard.append(event))
    for at, phase in ((100.0, "load"), (101.0, "step"), (120.0, "step")):
        now[0] = at
        hear("progress", {"phase": phase})
    assert made == []
    for at in (121.5, 130.0, 200.0):
        now[0] = at
        hear("progress", {"phase": "step"})
    assert made == ["made"]
    assert len(heard) == 6


@pytest.mark.parametrize(("system", "has_room"), [("darwin", True), ("linux", False)])
def test_no_spare_on_other_systems_or_where_memory_is_short(tmp_path, made, monkeypatch, system, has_room):
    monkeypatch.setattr(engine_child.sys, "platform", system)
    monkeypatch.setattr(engine_child, "_has_room", lambda: has_room)
    EngineChildren(tmp_path).warm_up()
    assert made == []
