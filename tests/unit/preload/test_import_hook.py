"""Looking on while modules load."""

import importlib
import sys

import pytest
from holdfast_preload import import_hook, script_settings, torch_hooks

from holdfast.core.event_log import read_events
from holdfast.core.events import HookFailed


@pytest.fixture
def library(attempt, tmp_path, monkeypatch):
    """A small library on the path, with a part of ours for it."""
    (tmp_path / "fake_library.py").write_text("VALUE = 1\ndef is_available():\n    return True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [import_hook.ImportHook(), *sys.meta_path])
    yield "fake_library"
    sys.modules.pop("fake_library", None)


def test_import_hook_runs_after_the_module(library, monkeypatch):
    seen = []
    monkeypatch.setitem(import_hook.AFTER, library, "torch_hooks:after_fake")
    monkeypatch.setattr(torch_hooks, "after_fake", lambda module: seen.append(module.VALUE), raising=False)
    module = importlib.import_module(library)
    assert seen == [1]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__loader__)


def test_failing_hook_is_an_event_and_import_succeeds(library, attempt, monkeypatch):
    monkeypatch.setitem(import_hook.AFTER, library, "devices:not_there")
    assert importlib.import_module(library).VALUE == 1
    (failed,) = [event for event in read_events(attempt / "events.jsonl") if isinstance(event, HookFailed)]
    assert failed.where == library


def test_every_hook_exists():
    for name in import_hook.AFTER.values():
        file, _, function = name.partition(":")
        assert callable(getattr(importlib.import_module(f"holdfast_preload.{file}"), function))


def test_an_accelerator_is_hidden_when_the_plan_says_cpu(library, attempt):
    module = importlib.import_module(library)
    module.is_built = lambda: True
    torch_hooks.after_mps(module)
    assert module.is_available()
    (attempt / "settings.json").write_text('{"changes": {"device": "cpu"}}')
    script_settings.read(str(attempt))
    torch_hooks.after_mps(module)
    assert not module.is_available()
    assert not module.is_built()
    assert "MPS hidden" in (attempt / "events.jsonl").read_text()
