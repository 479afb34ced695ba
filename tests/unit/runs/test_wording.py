"""The wording itself: a few snapshots, so that a change of words is seen as one."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.evidence import Cause, Decision
from holdfast.core.facts import DatasetFacts
from holdfast.core.observations import ExitStatus
from holdfast.core.plan import Fallback, Reason
from holdfast.core.records import Compared, ComparedTime, ForecastCheck, Result
from holdfast.core.scores import ModelMetrics, SplitMetrics
from holdfast.core.settings import TrainRequest
from holdfast.runs.event_wording import event_lines
from holdfast.runs.state import AttemptState, Records, RunState, fold
from holdfast.runs.wording import (
    attempt_lines,
    clean,
    closing_lines,
    decision_text,
    forecast_check_text,
    forecast_reasons,
    gives_no_label,
    headline,
    reason_text,
)

FOLDER = Path("runs/bank")
TRAIN = TrainRequest(data="bank.csv")
HUNG = AttemptState(
    number=1,
    folder=FOLDER / "attempts/01",
    outcome="hung",
    step=40,
    noticed_after_seconds=5.8,
    slug="dataloader-deadlock",
    cause=Cause(
        slug="dataloader-deadlock",
        confidence="proven",
        title="a data loader worker waits for a lock",
        exit=ExitStatus(is_hang=True),
    ),
    decision=Decision(
        action="fallback",
        reason=Reason(kind="remedy", title="the loader's workers deadlock"),
        fallback=Fallback("load data in the main process", {"loader_workers": 0}, "slower input"),
    ),
    started=0.0,
    ended=60.0,
)
DONE = AttemptState(number=2, folder=FOLDER / "attempts/02", outcome="finished", step=93, steps=93)


def ended(state: str, *attempts: AttemptState, **more: object) -> RunState:
    records = Records(request=TRAIN, result=Result(state=state, seconds=72.0), **more)
    return RunState(folder=FOLDER, attempts=attempts, records=records, is_supervised=False)


def measured(accuracy: float) -> ModelMetrics:
    return ModelMetrics(splits={"test": SplitMetrics(scores={"accuracy": accuracy})})


def test_a_run_in_training():
    steps = [ev.StepDone(step=at, loss=1.18, time=at * 0.2) for at in range(44)]
    state = fold([ev.AttemptStarted(number=1), ev.TrainingStarted(first_step=0, steps=93), *steps], folder=FOLDER)
    assert headline(state) == "Training: step 44/93, loss 1.18, 9.8 s left."


def test_runs_that_ended():
    metrics = measured(0.921)
    assert headline(ended("finished", HUNG, DONE, metrics=metrics)) == (
        "Finished in 1 min 12 s after 1 failed attempt: 92.1% accuracy on the test split."
    )
    assert headline(ended("failed", HUNG)) == (
        "Failed after 1 attempt: a data loader worker waits for a lock. Remedy for: the loader's workers deadlock."
    )
    assert headline(ended("stopped", DONE)) == "Stopped at step 93 of 93."
    left = RunState(folder=FOLDER, records=Records(request=TRAIN), is_supervised=False)
    assert headline(left) == "Not running. Continue with `holdfast resume runs/bank`."


def test_an_attempt_with_its_cause():
    assert [line.text for line in attempt_lines(HUNG)] == [
        "attempt 1 hung and was terminated at step 40, noticed after 5.8 s",
        "hung: a data loader worker waits for a lock [dataloader-deadlock]",
    ]
    assert decision_text(HUNG.decision) == (
        "load data in the main process [loader_workers 0]: remedy for: the loader's workers deadlock"
    )


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ev.Quiet(seconds=9.0, phase="load"), "no progress for 9.0 s while loading the model"),
        (ev.Resumed(step=40), "resumed from step 40"),
        (ev.AttemptStarted(number=3, reason=Reason(kind="killed_externally")),
         "attempt 3, same settings: the process was killed externally"),
        (ev.MachinesAwaited(present=["a"], wanted=2, seconds_left=9.0),
         "1 of 2 machines have joined (a); waiting for 1 more, giving up in 9.0 s"),
    ],
)  # fmt: skip
def test_an_event_in_the_log(event: ev.Event, text: str):
    assert [line.text for line in event_lines(event)] == [text]


def test_failed_run_shows_next_steps():
    state = ended("failed", HUNG)
    lines = [line.text for line in closing_lines(state)]
    assert lines[-1] == "runs/bank"


def test_a_log_cannot_control_the_terminal():
    assert clean("a\x1b[31m b\n c") == "a[31m b c"


def test_every_reason_has_a_sentence():
    texts = [reason_text(Reason(kind=kind, title="t", place="p")) for kind in get_args(get_type_hints(Reason)["kind"])]
    assert all(texts)
    assert reason_text(Reason(kind="same_error", place="train.py:9")).startswith(
        "the same error came back at train.py:9"
    )


ONLY_TRAINING = DatasetFacts(task="classify", form="one label", rows=21, columns=(), splits={"train": 21})


def test_finished_run_shows_scores_and_next_steps():
    state = ended("finished", DONE, metrics=measured(0.9), dataset=ONLY_TRAINING)
    lines = [(line.name, line.text) for line in closing_lines(state)]
    assert ("test", "accuracy 90.0%") in lines
    assert ("next", 'holdfast predict runs/bank "..."') in lines


def test_unmeasured_model_is_reported():
    state = ended("finished", DONE, dataset=ONLY_TRAINING)
    text = " ".join(line.text for line in closing_lines(state))
    assert "not measured: the data has no validation or test rows (all 21 rows are for training)" in text


@pytest.mark.parametrize(("rows", "can_split"), [(3, False), (4, True)])
def test_a_share_for_validation_is_advised_only_if_rows_suffice(rows: int, can_split: bool):
    facts = DatasetFacts(task="classify", form="one label", rows=rows, columns=(), splits={"train": rows})
    text = " ".join(line.text for line in closing_lines(ended("finished", DONE, dataset=facts)))
    assert "--validation FILE" in text
    assert ("--validation-share" in text) is can_split


@pytest.mark.parametrize(("metrics", "is_none"), [({"micro_f1": 0}, True), ({"micro_f1": 0, "accuracy": 0}, False)])
def test_only_a_model_without_any_label_is_called_so(metrics: dict[str, float], is_none: bool):
    assert gives_no_label(metrics) is is_none


def test_a_forecast_next_to_what_happened():
    clock = ComparedTime(forecast=220.0, actual=487.0, cores=Compared(forecast=0.2, actual=0.11))
    memory = Compared(forecast=452e6, actual=394e6)
    assert forecast_check_text(ForecastCheck(seconds=clock, peak_bytes=memory)) == (
        "took 8 min 7 s, 121% longer than forecast (3 min 40 s); 394.0 MB of memory, 13% less than forecast (452.0 MB)"
    )


def test_why_a_forecast_was_off():
    clock = ComparedTime(forecast=100.0, actual=220.0, lost_seconds=20.0, cores=Compared(forecast=2.0, actual=1.0))
    lost, busy = forecast_reasons(clock)
    assert lost == "20 s went into interrupted attempts"
    assert busy.startswith("other programs kept the processor busy: the run got 1.0 cores")
    assert busy.endswith("about 1 min 40 s, as forecast")
    assert forecast_reasons(replace(clock, lost_seconds=0.0, cores=Compared(forecast=2.0, actual=1.9))) == []
    freer_clock = ComparedTime(forecast=100.0, actual=80.0, cores=Compared(forecast=0.5, actual=0.58))
    (freer,) = forecast_reasons(freer_clock)
    assert freer.startswith("other programs used less of the processor: the run got 0.58 cores")
