"""A run whose checkpoints cannot fit on its disk is refused before time is spent on it."""

import pytest

from holdfast.core.errors import MachineError
from holdfast.core.facts import ModelFacts
from holdfast.core.plan import Choice
from holdfast.core.records import MemoryEstimate, RunPlan
from holdfast.core.settings import EngineSettings
from holdfast.pipeline.stages import require_room


def plan(parameters: int, *, lora: bool = False) -> RunPlan:
    model = ModelFacts(name="large", folder="/m", source="a folder", parameters=parameters)
    choices = {"lora": Choice(lora, "as asked")}
    settings = EngineSettings(task="causal", model="/m", prepared="/p", run="/r")
    memory = MemoryEstimate(need_bytes=0, libraries_bytes=0)
    return RunPlan(task="causal", model=model, choices=choices, settings=settings, memory=memory)


def test_oversized_run_is_refused_with_available_and_needed(tmp_path):
    with pytest.raises(MachineError, match="no space for two checkpoints") as refused:
        require_room(tmp_path, plan(10**15))
    assert str(tmp_path) in refused.value.what
    assert " free of " in refused.value.found
    assert "24000.0 TB" in refused.value.found
    assert any("--out" in advice for advice in refused.value.try_next)


def test_small_or_fitting_saves_continue(tmp_path):
    require_room(tmp_path, plan(10))
    require_room(tmp_path, plan(10**15, lora=True))
    (tmp_path / "checkpoints").mkdir()
    require_room(tmp_path, plan(10**15))
