"""The result of a training run, with its forecast next to what happened."""

import json
import time
from pathlib import Path

from holdfast.core.event_log import EventLog
from holdfast.core.events import Event, StepDone, TrainingStarted, TreeSampled
from holdfast.core.facts import ModelFacts
from holdfast.core.records import Forecast, MemoryEstimate, Outcome, Result, RunPlan, write_record
from holdfast.core.runfolder import EVENTS, SAMPLES, attempt_folder
from holdfast.core.settings import EngineSettings
from holdfast.runs.train_result import describe_result, lost_seconds

PLAN = RunPlan(
    task="classify",
    model=ModelFacts(name="m", folder="/m"),
    choices={},
    settings=EngineSettings(task="classify", model="/m", prepared="/p", run="/r"),
    memory=MemoryEstimate(need_bytes=0, libraries_bytes=0),
)
FINISHED = Result(state="finished", exit_code=0, attempts=1, seconds=12.0)


def write_events(path: Path, *events: Event) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = EventLog(path)
    for event in events:
        log.write(event)


def steps(first: int, count: int, begun: float) -> list[Event]:
    done = [StepDone(step=first + at, time=begun + at) for at in range(count)]
    return [TrainingStarted(first_step=first, steps=100, time=begun - 1), *done]


def test_the_forecast_is_compared_with_what_happened(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"step": 9, "test": {"accuracy": 0.9, "classes": []}}))
    forecast = Forecast(basis="measured steps", seconds=100.0, made_at=time.time() - 110, peak_bytes=10)
    write_record(tmp_path, forecast)
    found = describe_result(tmp_path, PLAN, FINISHED)
    assert (found.kind, found.task, found.model) == ("train", "classify", str(tmp_path / "model"))
    assert found.metrics == {"test": {"accuracy": 0.9}}
    assert abs(found.forecast.seconds.error - 0.1) < 0.02
    assert found.forecast.peak_bytes.actual is None


def test_gpu_memory_is_compared_with_gpu_memory(tmp_path):
    write_record(tmp_path, Forecast(basis="model size", peak_bytes=200, card_peak_bytes=1000))
    attempt = attempt_folder(tmp_path, 1)
    write_events(attempt / EVENTS, StepDone(step=0, card_bytes=1100))
    write_events(attempt / SAMPLES, TreeSampled(phase="step", resident_bytes=220))
    found = describe_result(tmp_path, PLAN, FINISHED).forecast
    assert (found.peak_bytes.error, found.card_peak_bytes.error) == (0.1, 0.1)


def test_memory_seen_only_before_training_is_not_compared(tmp_path):
    write_record(tmp_path, Forecast(basis="model size", peak_bytes=200))
    write_events(attempt_folder(tmp_path, 1) / SAMPLES, TreeSampled(phase="start", resident_bytes=2, peak_bytes=2))
    assert describe_result(tmp_path, PLAN, FINISHED).forecast.peak_bytes.actual is None


def test_the_peak_counts_although_no_sample_was_written_at_it(tmp_path):
    write_record(tmp_path, Forecast(basis="model size", peak_bytes=200))
    samples = (
        TreeSampled(phase="start", resident_bytes=2),
        TreeSampled(phase="end", step=9, resident_bytes=90, peak_bytes=220),
    )
    write_events(attempt_folder(tmp_path, 1) / SAMPLES, *samples)
    assert describe_result(tmp_path, PLAN, FINISHED).forecast.peak_bytes.error == 0.1


def test_failure_cost_counts_from_the_last_kept_step():
    died = steps(0, 10, begun=100.0)  # step 9 at 109; saved after step 5, at 104
    resumed = steps(5, 10, begun=130.0)
    assert lost_seconds([died, resumed]) == 130.0 - 104.0
    assert lost_seconds([died, resumed], since=120.0) == 10.0
    assert lost_seconds([died]) == 0.0
    assert lost_seconds([died, [], resumed]) == 130.0 - 104.0


def test_time_between_stop_and_resume_does_not_count(tmp_path):
    now, day = time.time(), 86_400.0
    for number, state, started in ((1, "stopped", now - day - 80), (2, "finished", now - 40)):
        attempt = attempt_folder(tmp_path, number)
        write_events(attempt / EVENTS, *steps(30 * (number - 1), 30, begun=started + 5))
        write_record(attempt, Outcome(number=number, outcome=state, started=started, seconds=40.0))
    write_record(tmp_path, Forecast(basis="measured steps", seconds=100.0, made_at=now - day - 70))
    clock = describe_result(tmp_path, PLAN, FINISHED).forecast.seconds
    assert abs(clock.actual - 70) < 5
    assert abs(clock.lost_seconds - 11) < 1  # from its last step to its end, and from the start to the first step
