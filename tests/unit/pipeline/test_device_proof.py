"""A Mac's GPU trains only if it is the fastest, has the CPU's gradients, and holds for the longest examples."""

from dataclasses import replace

import pytest

from holdfast.core.event_log import EventLog
from holdfast.core.events import CandidateTimed
from holdfast.core.facts import DeviceTrial, MachineFacts, ModelFacts
from holdfast.core.records import FirstSteps, MemoryEstimate, RunPlan, TrialRequest, TrialTiming, require_record
from holdfast.core.runfolder import EVENTS
from holdfast.core.settings import EngineSettings, TrainRequest
from holdfast.pipeline.prove import SmallRun, prove
from tests.tiny import tiny_prepared

MAC = MachineFacts(
    os="macos", cpu_count=4, trials=(DeviceTrial(device="mps", outcome="agrees", detail="", seconds=1.0),)
)


class Engine:
    """Stands for the processes of a proof: MPS is ten times as fast as the CPU."""

    def __init__(self, gradient_off: float, longest_loss: float):
        self._gradient_off, self._longest_loss = gradient_off, longest_loss

    def warm_up(self) -> None:
        pass

    def small(self, folder, settings, variables, words, seconds):
        return SmallRun(self._longest_loss if settings.device == "mps" else 1.0, {}, None, 1.0)

    def time_candidates(self, folder, settings, variables, words, seconds):
        events = EventLog(folder / EVENTS)
        for number, changes in enumerate(require_record(folder, TrialRequest).candidates):
            is_mps = changes.get("device") == "mps"
            speed, off = (1000.0, self._gradient_off) if is_mps else (100.0, 0.0)
            result = TrialTiming(loss=1.0, norm=1.0, gradient_off=off, tokens_per_second=speed)
            events.write(CandidateTimed(number=number, candidate=changes, result=result))

    def first_steps(self, folder, settings, variables, wanted, seconds):
        return FirstSteps(state="finished")


@pytest.mark.parametrize(
    ("gradient_off", "longest_loss", "device"), [(1e-4, 1.0, "mps"), (0.3, 1.0, "cpu"), (1e-4, 1.5, "cpu")]
)
def test_fastest_device_that_agrees_trains(gradient_off, longest_loss, device, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepared = tiny_prepared(tmp_path / "prepared")
    settings = EngineSettings(
        task="classify", model=str(tmp_path), prepared=str(prepared), run=str(tmp_path), threads=4, batch_size=8
    )
    model = ModelFacts(name="tiny", folder=str(tmp_path), source="here", parameters=1000, hidden=32, vocabulary=120)
    memory = MemoryEstimate(need_bytes=1, libraries_bytes=1)
    plan = RunPlan(task="classify", model=model, choices={}, settings=settings, memory=memory)
    request = replace(TrainRequest(data="x.csv"), prove="always")
    proof = prove(tmp_path, request, plan, MAC, lambda event: None, Engine(gradient_off, longest_loss))
    assert proof.settings.get("device", "cpu") == device
    assert [one.changes for one in proof.candidates if one.is_chosen] == [{"device": "mps"} if device == "mps" else {}]
