"""A forecast counts what a run really does, and says what it assumes."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.core.event_log import EventLog
from holdfast.core.events import AttemptStarted, CheckpointSaved, Event, ForecastMade, Progressed, StepDone
from holdfast.core.facts import ModelFacts
from holdfast.core.records import FirstSteps, Forecast, MemoryEstimate, Proof, RunPlan, read_record, write_record
from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.core.settings import EngineSettings
from holdfast.data.amounts import Amounts
from holdfast.engine.mining import Mining
from holdfast.engine.tasks import causal
from holdfast.pipeline import forecast as forecasts
from holdfast.pipeline.forecast import Forecaster, cores_used, cost_of, work_of

CLASSIFY = Amounts(
    examples=3200,
    tokens=32_000,
    longest_tokens=30,
    largest_step_tokens=900,
    evaluation_tokens=4000,
    report_tokens=9000,
    largest_read_tokens=5000,
)
TOWERS = Amounts(
    examples=100,
    tokens=10_000,
    longest_tokens=200,
    largest_step_tokens=2000,
    evaluation_tokens=51_000,
    report_tokens=52_000,
    largest_read_tokens=50_000,
    query_tokens=2000,
    corpus_tokens=50_000,
    corpus_mean_tokens=100.0,
)
SETTINGS = EngineSettings(task="classify", model="/m", prepared="/p", run="/r", batch_size=32, epochs=2)
MODEL = ModelFacts(name="minilm", folder="/m", parameters=22_000_000, layers=6, hidden=384, inner=1536)
PLAN = RunPlan(
    task="classify",
    model=MODEL,
    choices={},
    settings=SETTINGS,
    memory=MemoryEstimate(need_bytes=10**9, libraries_bytes=10**8),
)
FIRST_STEPS = FirstSteps(state="killed", saved_step=8, steps=12, peak_bytes=2 * 10**9)


def test_the_numbers_are_those_of_the_engine():
    assert (Mining().from_epoch, Mining().negatives) == (forecasts.MINED_FROM_EPOCH, forecasts.MINED_EACH)
    assert forecasts.ANSWERS == causal._SAMPLES


def test_work_counts_what_mining_adds():
    settings = replace(SETTINGS, task="two-tower", batch_size=10, epochs=3, options={"mining": {}})
    found = work_of(settings, TOWERS)
    assert (found.steps, found.late_steps, found.minings) == (30, 20, 2)
    assert found.late_tokens == 10 * 100.0
    assert found.mining_tokens == 2000  # the evaluation after the epoch has just read the corpus
    assert work_of(replace(settings, options={}), TOWERS).late_steps == 0


def test_report_reuses_the_searched_corpus():
    settings = replace(SETTINGS, task="two-tower", batch_size=10, epochs=1)
    assert work_of(settings, TOWERS).report_tokens == 2000
    assert work_of(replace(settings, epochs=2), TOWERS).report_tokens == 52_000


def forecaster(run: Path, proof: Proof | None = None, plan: RunPlan = PLAN) -> tuple[Forecaster, list[Event]]:
    reported: list[Event] = []
    return Forecaster(run, plan, proof, work_of(SETTINGS, CLASSIFY), reported.append), reported


@pytest.fixture
def forecast(tmp_path):
    """The forecast that a run of these events gets."""
    attempt = attempt_folder(tmp_path, 1)
    attempt.mkdir(parents=True)

    def make(events: list[Event]) -> Event | None:
        log = EventLog(attempt / EVENTS)
        for event in events:
            log.write(event)
        hear, reported = forecaster(tmp_path)
        hear(AttemptStarted(number=1))
        hear(Progressed(phase="step", resident_bytes=10**9))
        return next(iter(reported), None)

    return make


def timed(count: int, *, slow: frozenset[int] = frozenset(), card_bytes: int | None = None) -> list[Event]:
    at, events = 100.0, []
    for step in range(count):
        at += 5.0 if step in slow else 1.0
        done = StepDone(step=step, loss=1.0, norm=1.0, time=at, cpu_seconds=1.5 * at, card_bytes=card_bytes)
        events.append(done)
    return events


def test_steps_during_a_save_do_not_count(forecast):
    events = timed(12, slow=frozenset({6}))
    saved = CheckpointSaved(step=6, seconds=4.0, time=events[6].time)
    with_save = forecast([*events[:7], saved, *events[7:]])
    assert with_save.seconds == pytest.approx(188 + (2 * 4000 + 9000) * 0.4 / 320 + 4, rel=0.01)
    assert (with_save.measured_steps, with_save.step_seconds) == (12, pytest.approx(1.0))


def test_a_forecast_says_how_many_cores_it_assumes(forecast):
    assert forecast(timed(12)).cores == 1.5


def test_events_are_read_only_once(forecast, tmp_path, monkeypatch):
    log, read = EventLog(attempt_folder(tmp_path, 1) / EVENTS), []
    hear, _ = forecaster(tmp_path)
    hear(AttemptStarted(number=1))
    monkeypatch.setattr(forecasts, "_LOOK_SECONDS", 0.0)
    taken = forecasts.StepCosts.take
    monkeypatch.setattr(forecasts.StepCosts, "take", lambda costs, event: (read.append(event), taken(costs, event)))
    for event in timed(6):
        log.write(event)
        hear(Progressed(phase="step"))
    assert [event.step for event in read] == list(range(6))


def test_full_disk_still_shows_a_forecast(forecast, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.pipeline.forecast.write_record", refuse)
    assert forecast(timed(12)).seconds > 100


def test_cores_are_counted_from_a_time_on():
    assert cores_used(cost_of(timed(5)).cpu) == 1.5
    assert cores_used(cost_of(timed(5)).cpu, since=10**9) is None


def leave_first_steps(run: Path, events: list[Event]) -> Proof:
    folder = run / "proof" / "first-steps"
    folder.mkdir(parents=True)
    write_record(folder, SETTINGS)
    log = EventLog(folder / EVENTS)
    for event in events:
        log.write(event)
    return Proof(state="done", first_steps=FIRST_STEPS)


def test_timed_proof_gives_a_forecast_before_the_run(tmp_path):
    proof = leave_first_steps(tmp_path, timed(12, card_bytes=10**9))
    on_card = structs.replace(PLAN, settings=replace(SETTINGS, precision="bf16", device="cuda"))
    hear, reported = forecaster(tmp_path, proof, on_card)
    hear(AttemptStarted(number=1))
    assert [type(event) for event in reported] == [ForecastMade]
    forecast = read_record(tmp_path, Forecast)
    assert forecast.seconds == reported[0].seconds == pytest.approx(192, rel=0.15)
    assert forecast.peak_bytes == pytest.approx(2e9, rel=0.05)
    assert forecast.card_peak_bytes == pytest.approx(1.15e9, rel=0.05)
    assert forecast.made_at


def test_waiting_run_has_a_forecast_that_has_not_started(tmp_path):
    proof = leave_first_steps(tmp_path, timed(12))
    forecaster(tmp_path, proof)[0].forecast_from_proof(is_waiting=True)
    waiting = read_record(tmp_path, Forecast)
    assert waiting.seconds > 100
    assert waiting.made_at is None
    forecaster(tmp_path, proof)[0](AttemptStarted(number=1))  # somebody has started it, however much later
    begun = read_record(tmp_path, Forecast).made_at
    assert begun
    forecaster(tmp_path, proof)[0].forecast_from_proof(is_waiting=True)
    assert read_record(tmp_path, Forecast).made_at == begun  # a run that has begun is not forecast again
