"""What goes to trackers, and what happens when one of them breaks."""

import json
from pathlib import Path

import pytest

from holdfast.core import events as ev
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.core.settings import TRACKERS
from holdfast.runs import trackers
from holdfast.runs.trackers import WRITERS, NewNumbers, follow, require_trackers


class Kept:
    """A tracker that keeps what it is told."""

    told: list = []  # noqa: RUF012  (one for all, as every run makes its own)
    breaks_at = 10**9

    def __init__(self, run, settings):
        self.told.append(("open", run.name, dict(settings)))

    def write(self, step, at, values):
        if step >= self.breaks_at:
            raise ConnectionError("no route")
        self.told.append((step, dict(values)))

    def close(self, state, final):
        self.told.append(("close", state, dict(final)))


class Broken(Kept):
    breaks_at = 3


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A run of two attempts; the second did two steps of the first again."""
    monkeypatch.setattr(trackers, "WRITERS", {"kept": Kept, "broken": Broken})
    Kept.told = []
    run = tmp_path / "run"
    for number, steps in ((1, range(4)), (2, range(2, 6))):
        folder = attempt_folder(run, number)
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text('{"task": "classify", "lr": 0.1, "options": {}}')
        log = EventLog(folder / EVENTS)
        for step in steps:
            log.write(ev.StepDone(step=step, loss=1.0 - step / 10, lr=0.1, norm=2.0))
    log.write(ev.Evaluated(step=6, metrics={"accuracy": 0.5}))
    (run / "metrics.json").write_text(json.dumps({"test": {"accuracy": 0.7, "classes": []}}))
    (run / "result.json").write_text('{"state": "finished"}')
    return run


def test_every_step_is_handed_on_once(run):
    follow(run, ["kept"], lambda: True, 0)
    assert Kept.told[0] == ("open", "run", {"task": "classify", "lr": 0.1})
    assert [told[0] for told in Kept.told[1:-1]] == [1, 2, 3, 4, 5, 6, 6]
    assert Kept.told[1] == (1, {"train/loss": 1.0, "train/learning_rate": 0.1, "train/grad_norm": 2.0})
    assert Kept.told[-2] == (6, {"eval/accuracy": 0.5})
    assert Kept.told[-1] == ("close", "finished", {"test/accuracy": 0.7})


def test_a_broken_tracker_does_not_stop_the_others(run, capsys):
    follow(run, ["broken", "kept"], lambda: True, 0)
    assert [told[0] for told in Kept.told].count(6) == 2
    assert [told[0] for told in Kept.told].count("close") == 1
    assert "ConnectionError: no route" in capsys.readouterr().err


def test_evaluations_come_in_the_order_of_steps(run):
    EventLog(attempt_folder(run, 2) / EVENTS).write(ev.Evaluated(step=3, metrics={"accuracy": 0.4}))
    told = [step for step, _, _ in NewNumbers(run).read()]
    assert told == sorted(told) == [1, 2, 3, 3, 4, 5, 6, 6]


def test_no_number_is_forwarded_twice(run):
    numbers = NewNumbers(run)
    assert len(numbers.read()) == 7
    assert numbers.read() == []


def test_an_unknown_or_missing_tracker_is_refused(monkeypatch):
    with pytest.raises(RequestError) as error:
        require_trackers(["tensorbord"])
    (advice,) = error.value.try_next
    assert advice.split()[-1] == "tensorboard?"
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(RequestError) as error:
        require_trackers(["mlflow", "wandb"])
    assert error.value.try_next == ("pip install mlflow wandb",)
    require_trackers([])


def test_every_tracker_option_has_a_writer():
    assert set(WRITERS) == set(TRACKERS)
