"""A forecast counts what a run really does, and says what it assumes."""

import json

import pytest

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.runfolder import EVENTS, PLAN, attempt_folder
from holdfast.data.amounts import Amounts
from holdfast.engine.mining import Mining
from holdfast.engine.tasks import causal
from holdfast.runs import work
from holdfast.runs.forecasting import Forecasting, cores_used
from holdfast.runs.work import work_of

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
SETTINGS = {"task": "classify", "batch_size": 32, "epochs": 2, "device": "cpu", "micro_tokens": 16_384}
MODEL = {"name": "minilm", "folder": "/m", "parameters": 22_000_000, "layers": 6, "hidden": 384, "inner": 1536}


def test_the_numbers_are_those_of_the_engine():
    assert (Mining().from_epoch, Mining().negatives) == (work.MINED_FROM_EPOCH, work.MINED_EACH)
    assert work.ANSWERS == causal._SAMPLES


def test_work_counts_what_mining_adds():
    settings = {"task": "two-tower", "batch_size": 10, "epochs": 3, "options": {"mining": {}}}
    found = work_of(settings, TOWERS)
    assert (found.steps, found.late_steps, found.minings) == (30, 20, 2)
    assert found.late_tokens == 10 * 100.0
    assert found.mining_tokens == 2000  # the evaluation after the epoch has just read the corpus
    assert work_of({**settings, "options": {}}, TOWERS).late_steps == 0


def test_a_corpus_that_was_just_searched_is_not_read_again_for_the_report():
    settings = {"task": "two-tower", "batch_size": 10, "epochs": 1}
    assert work_of(settings, TOWERS).report_tokens == 2000
    assert work_of({**settings, "epochs": 2}, TOWERS).report_tokens == 52_000


@pytest.fixture
def forecast(tmp_path):
    """The forecast that a run of these events gets."""
    write_artifact(tmp_path, PLAN, {"settings": {**SETTINGS, "precision": "fp32"}, "model": MODEL})
    attempt = attempt_folder(tmp_path, 1)
    attempt.mkdir(parents=True)

    def make(events):
        (attempt / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events))
        told = {}
        listening = Forecasting(
            tmp_path, work_of(SETTINGS, CLASSIFY), lambda event, details: told.update({event: details})
        )
        listening("attempt", {"number": 1})
        listening("progress", {"resident_bytes": 10**9})
        return told.get("forecast", {})

    return make


def timed(count: int, *, slow: frozenset[int] = frozenset()) -> list[dict[str, object]]:
    at, told = 100.0, []
    for step in range(count):
        at += 5.0 if step in slow else 1.0
        told.append({"event": "step", "step": step, "loss": 1.0, "norm": 1.0, "time": at, "cpu_seconds": 1.5 * at})
    return told


def test_steps_beside_a_save_do_not_count(forecast):
    events = timed(12, slow=frozenset({6}))
    saved = {"event": "saved", "step": 6, "seconds": 4.0, "time": float(str(events[6]["time"]))}
    with_save = forecast([*events[:7], saved, *events[7:]])
    assert with_save["seconds"] == pytest.approx(188 + (2 * 4000 + 9000) * 0.4 / 320 + 4, rel=0.01)
    assert "12 steps of 1.0 s" in with_save["because"]


def test_a_forecast_says_what_it_assumes(forecast):
    assert "if nothing fails and other programs leave it 1.5 cores, as now" in forecast(timed(12))["because"]


def test_a_full_disk_keeps_no_forecast_from_being_told(forecast, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.runs.forecasting.write_artifact", refuse)
    assert forecast(timed(12))["seconds"] > 100


def test_cores_are_counted_from_a_time_on():
    assert cores_used(timed(5)) == 1.5
    assert cores_used(timed(5), since=10**9) is None


def test_a_proof_that_timed_the_first_steps_gives_a_forecast_before_the_run_begins(tmp_path):
    proof = {"first_steps": {"state": "killed", "saved_step": 8, "steps": 12, "peak_bytes": 2 * 10**9}}
    settings = {**SETTINGS, "precision": "bf16", "device": "cuda"}
    write_artifact(tmp_path, PLAN, {"settings": settings, "model": MODEL, "proof": proof})
    folder = tmp_path / "proof" / "first-steps"
    folder.mkdir(parents=True)
    write_artifact(folder, "settings.json", settings)
    events = [{**event, "card_bytes": 10**9} for event in timed(12)]
    (folder / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events))
    told = {}
    listening = Forecasting(tmp_path, work_of(SETTINGS, CLASSIFY), lambda event, details: told.update({event: details}))
    listening("attempt", {"number": 1})
    assert told["forecast"]["seconds"] == pytest.approx(192, rel=0.15)
    assert told["forecast"]["peak_bytes"] == pytest.approx(2e9, rel=0.05)
    assert told["forecast"]["card_peak_bytes"] == pytest.approx(1.15e9, rel=0.05)
    assert "of the card's" in told["forecast"]["words"]
    assert read_artifact(tmp_path / PLAN)["forecast"]["made_at"]


def test_a_run_that_waits_after_its_proof_has_a_forecast_whose_time_has_not_begun(tmp_path):
    proof = {"first_steps": {"state": "killed", "saved_step": 8, "steps": 12, "peak_bytes": 2 * 10**9}}
    write_artifact(tmp_path, PLAN, {"settings": {**SETTINGS, "precision": "fp32"}, "model": MODEL, "proof": proof})
    folder = tmp_path / "proof" / "first-steps"
    folder.mkdir(parents=True)
    write_artifact(folder, "settings.json", SETTINGS)
    (folder / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in timed(12)))

    def forecast():
        return read_artifact(tmp_path / PLAN)["forecast"]

    def listening():
        return Forecasting(tmp_path, work_of(SETTINGS, CLASSIFY), lambda event, details: None)

    listening().forecast_from_proof(is_waiting=True)
    assert forecast()["seconds"] > 100
    assert forecast()["made_at"] is None
    listening()("attempt", {"number": 1})  # somebody has started it, however much later
    begun = forecast()["made_at"]
    assert begun
    listening().forecast_from_proof(is_waiting=True)
    assert forecast()["made_at"] == begun, "a run that has begun is not forecast again from its proof"
