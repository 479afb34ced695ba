"""Every record of a run folder: what is written is read back; what is damaged or newer does no harm."""

import stat
from typing import Any

import msgspec
import pytest

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.facts import ModelFacts
from holdfast.core.plan import Choice
from holdfast.core.records import (
    FILES,
    AttemptStart,
    CommandRequest,
    ComparedTime,
    FirstSteps,
    Forecast,
    ForecastCheck,
    LongestExamples,
    LossParity,
    MemoryEstimate,
    Outcome,
    Proof,
    Result,
    RunPlan,
    Supervisor,
    TimedCandidate,
    read_data_sha256,
    read_record,
    read_request,
    write_record,
    write_request,
)
from holdfast.core.runfolder import OUTCOME, PLAN, REQUEST
from holdfast.core.settings import SETTINGS, EngineSettings, TrainRequest

ENGINE = EngineSettings(task="classify", model="/m", prepared="/p", run="/r", options={"class_weights": [1.0, 2.0]})
PLAN_RECORD = RunPlan(
    task="classify",
    model=ModelFacts(name="minilm", folder="/m", parameters=22_000_000),
    choices={"lr": Choice(5e-5, "usual"), "packing": Choice(True, "faster")},
    settings=ENGINE,
    memory=MemoryEstimate(need_bytes=10, libraries_bytes=4, free_bytes=20),
)
PROOF_RECORD = Proof(
    state="done",
    fingerprint="abc",
    longest=LongestExamples(examples=2, loss=0.7, changes={"threads": 1}),
    parity=(LossParity(against="cpu", loss=0.7, reference_loss=0.7, off=0.0, agrees=True),),
    candidates=(TimedCandidate(changes={"threads": 2}, words="2 threads", is_chosen=True),),
    first_steps=FirstSteps(state="killed", steps=9, saved_step=7),
    settings={"threads": 2},
    choices={"threads": Choice(2, "measured")},
)
RECORDS = (
    PLAN_RECORD,
    PROOF_RECORD,
    Forecast(basis="measured steps", seconds=12.5, steps=20, step_seconds=0.5, made_at=1.0),
    Supervisor(pid=3, start_ticks=4, boot_id="b", host="h", started=1.5),
    AttemptStart(number=2, fallback="one thread", fallback_change={"threads": 1}, changes={"threads": 1}, started=3.0),
    Outcome(number=2, outcome="hung", diagnosis="script-deadlock", ineffective=("loader_workers",), is_external=True),
    Result(
        state="finished",
        exit_code=0,
        attempts=1,
        seconds=3.0,
        kind="train",
        metrics={"test": {"accuracy": 0.9}},
        forecast=ForecastCheck(seconds=ComparedTime(forecast=10.0, actual=11.0, error=0.1)),
    ),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_back_as_it_was_written(tmp_path, record):
    path = write_record(tmp_path, record)
    assert path.name == FILES[type(record)]
    assert read_record(tmp_path, type(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_field_of_a_newer_version_is_ignored(tmp_path, record):
    path = write_record(tmp_path, record)
    write_artifact(tmp_path, path.name, {**read_artifact(path), "new_field": {"a": 1}})
    assert read_record(tmp_path, type(record)) == record


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"task": 3}', '{"task": "classify"}'])
def test_missing_or_damaged_file_is_ignored(tmp_path, content):
    if content is not None:
        (tmp_path / PLAN).write_text(content)
    assert read_record(tmp_path, RunPlan) is None


def test_non_json_number_is_read_as_none(tmp_path):
    write_record(
        tmp_path, msgspec.structs.replace(PROOF_RECORD, longest=LongestExamples(examples=2, loss=float("nan")))
    )
    assert read_record(tmp_path, Proof).longest.loss is None


def test_each_type_has_its_own_file():
    assert len(set(FILES.values())) == len(FILES)


def test_a_training_request_is_read_back(tmp_path):
    request = TrainRequest(data="d.csv", text_column=("a", "b"), nodes=2, out="/shared/run", max_bad_rows=0)
    write_request(tmp_path, request, data_sha256="ff")
    assert read_request(tmp_path) == request
    assert read_data_sha256(tmp_path) == "ff"


def test_command_request_round_trips_and_is_private(tmp_path):
    request = CommandRequest(command=("python", "t.py"), cwd="/w", environment={"A": "b"}, resume_args=("--resume",))
    path = write_request(tmp_path, request)
    assert read_request(tmp_path) == request
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [{}, {"kind": "other"}, {"kind": "command"}, {"kind": "train", "epochs": "x"}])
def test_a_request_that_is_not_understood_is_none(tmp_path, content):
    write_artifact(tmp_path, REQUEST, content)
    assert read_request(tmp_path) is None


def test_every_setting_of_a_request_survives(tmp_path):
    given: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        sample = {"flag": True, "whole": 9, "number": 0.5, "texts": ("a",), "path": "p", "text": "t", "exact": " t"}
        given[name] = sample[setting.kind]
    request = TrainRequest(**given)
    write_request(tmp_path, request)
    assert read_request(tmp_path) == request


def test_outcome_without_version_is_ignored(tmp_path):
    write_artifact(tmp_path, OUTCOME, {"outcome": "died"})
    assert read_record(tmp_path, Outcome) is None
