"""Trains with either backend in this process, and reads what it left."""

import json
from pathlib import Path

from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import Event, StepDone
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import BEAT, EVENTS, attempt_folder
from holdfast.engine.attempt_settings import read_attempt_settings
from holdfast.engine.loop import Loop
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_attempt


def train(run: Path, model: Path, prepared: Path, number: int = 1, **settings: object) -> list[Event]:
    """Train one attempt; return its events."""
    attempt = tiny_attempt(run, model, prepared, number=number, **settings)
    made = read_attempt_settings(attempt)
    assert Loop(load_task(made), made, BeatWriter(attempt / BEAT), EventLog(attempt / EVENTS)).train() == 0
    return events(run, number)


def events(run: Path, number: int = 1) -> list[Event]:
    return list(read_events(attempt_folder(run, number) / EVENTS))


def losses(found: list[Event]) -> list[float]:
    return [event.loss for event in found if isinstance(event, StepDone)]


def norms(found: list[Event]) -> list[float]:
    return [event.norm for event in found if isinstance(event, StepDone)]


def without_dropout(model: Path) -> Path:
    """Set every dropout of a model folder to zero."""
    config = json.loads((model / "config.json").read_text())
    names = ("dropout", "attention_dropout", "seq_classif_dropout", "classifier_dropout")
    config |= {name: 0.0 for name in config if name.endswith("_dropout_prob") or name in names}
    (model / "config.json").write_text(json.dumps(config))
    return model
