"""A checkpoint of the plan as asked must be one that every safer fallback can continue from."""

import shutil
import threading
from pathlib import Path

import pytest

from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import Event, Resumed, StepDone
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import BEAT, EVENTS, attempt_folder, model_folder
from holdfast.core.settings import EngineSettings
from holdfast.engine.attempt_settings import read_attempt_settings
from holdfast.engine.loop import Loop
from holdfast.engine.tasks import load_task
from holdfast.supervisor.ladders import engine_ladder
from tests.tiny import tiny_attempt, tiny_bert, tiny_instructions, tiny_llama, tiny_prepared, tiny_questions

MAKERS = {
    "classify": (tiny_bert, tiny_prepared),
    "causal": (tiny_llama, tiny_instructions),
    "two-tower": (tiny_bert, tiny_questions),
}
ASKED = {"precision": "bf16", "micro_tokens": 512, "max_steps": 6, "packing": True}


class Crash(Exception):
    """Ends a run that has saved something."""


class EventsThatCrash(EventLog):
    def write(self, event: Event) -> None:
        super().write(event)
        if isinstance(event, StepDone) and event.step == 4:
            raise Crash


def train(attempt: Path, kind: type[EventLog] = EventLog) -> int:
    settings = read_attempt_settings(attempt)
    return Loop(load_task(settings), settings, BeatWriter(attempt / BEAT), kind(attempt / EVENTS)).train()


@pytest.mark.parametrize("task", MAKERS)
def test_run_resumes_from_its_checkpoint_on_every_fallback(task, tmp_path):
    make_model, make_prepared = MAKERS[task]
    parts = make_model(tmp_path / "model"), make_prepared(tmp_path / "prepared")
    asked = {"task": task, **ASKED}
    with pytest.raises(Crash):
        train(tiny_attempt(tmp_path / "run", *parts, **asked, save_seconds=0), EventsThatCrash)
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()
    ladder = engine_ladder(EngineSettings(model="", prepared="", run="", **asked | {"threads": 2}))
    changes = [ladder.apply({}, fallback.change) for fallback in ladder.fallbacks]
    assert {"packing": False} in changes
    for at, change in enumerate(one for one in changes if one):
        run = shutil.copytree(tmp_path / "run", tmp_path / f"run-{at}")
        assert train(tiny_attempt(run, *parts, number=2, **asked | change)) == 0, change
        assert any(isinstance(event, Resumed) for event in read_events(attempt_folder(run, 2) / EVENTS))
        assert list(model_folder(run).rglob("*.safetensors"))
