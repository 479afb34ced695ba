"""Tiny models through every stage, as `holdfast train` runs them: a stage is done again when its own inputs change."""

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.core.events import Event, StageStarted
from holdfast.core.facts import DatasetFacts, ModelFacts
from holdfast.core.records import Forecast, Proof, RunPlan, read_record, read_request, write_request
from holdfast.core.runfolder import attempt_folder
from holdfast.core.setting_values import make_request
from holdfast.data.shards import open_lengths, require_manifest
from holdfast.pipeline import stages
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.new_train import start_train
from holdfast.runs.train_run import plan_train
from tests.tiny import tiny_bert, tiny_llama

ALL = ["machine", "detect", "model", "prepare", "plan"]  # a tiny run is too short for a proof


def words(draws: random.Random, count: int = 12) -> str:
    return " ".join(f"w{draws.randrange(3, 119)}" for _ in range(count))


def rows(path: Path, make: Callable[[random.Random, int], dict[str, object]], count: int = 60) -> Path:
    draws = random.Random(1)
    path.write_text("".join(json.dumps(make(draws, at)) + "\n" for at in range(count)))
    return path


def labeled(path: Path, length: int = 12) -> Path:
    return rows(path, lambda draws, at: {"text": words(draws, length), "label": f"c{at % 3}"})


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    return str(tiny_bert(tmp_path_factory.mktemp("models") / "bert"))


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """No cache or memory of another test."""
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setattr(
        EngineChildren, "warm_up", lambda children: None
    )  # loads torch for a process that is not needed


def started(run: Path) -> list[str]:
    """Plan a run, and return the stages that were not skipped."""
    events: list[Event] = []
    plan_train(run, on_event=events.append)
    found = [event.stage for event in events if isinstance(event, StageStarted)]
    return [stage for stage in ALL if stage in found]


def new_run(folder: Path, **given: object) -> Path:
    return start_train(make_request({"out": str(folder / "run"), "device": "cpu", **given}))


def vectors(path: Path) -> Path:
    passages = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    np.savez(path, queries=passages + 0.1, passages=passages)
    return path


@pytest.mark.parametrize("task", ["classify", "causal", "two-tower", "vectors"])
def test_every_task_goes_through_all_stages_once(task, bert, tmp_path):
    if task == "vectors":
        run = new_run(tmp_path, data=str(vectors(tmp_path / "a.npz")))
    elif task == "causal":
        data = rows(tmp_path / "a.jsonl", lambda draws, _: {"instruction": words(draws, 5), "output": words(draws, 4)})
        run = new_run(tmp_path, data=str(data), model=str(tiny_llama(tmp_path / "llama")))
    elif task == "classify":
        run = new_run(tmp_path, data=str(labeled(tmp_path / "a.jsonl")), model=bert)
    else:
        data = rows(tmp_path / "a.jsonl", lambda draws, _: {"query": words(draws, 4), "positive": words(draws)})
        run = new_run(tmp_path, data=str(data), model=bert)
    assert started(run) == ALL
    plan, dataset, model = (read_record(run, kind) for kind in (RunPlan, DatasetFacts, ModelFacts))
    assert plan.task == dataset.task == task.replace("vectors", "two-tower")
    assert plan.model == model
    assert plan.settings.prepared == str(run / "prepared")
    assert {split: size.rows for split, size in require_manifest(run / "prepared").splits.items()} == dataset.splits
    assert read_record(run, Proof).state == "skipped"
    assert read_record(run, Forecast).rough_seconds > 0
    assert started(run) == []


def test_a_changed_setting_redoes_what_depends_on_it(bert, tmp_path):
    run = new_run(tmp_path, data=str(labeled(tmp_path / "a.jsonl")), model=bert)
    started(run)
    changes = (
        ({"label_column": "label"}, ["detect", "prepare", "plan"]),
        ({"validation_share": 0.2}, ["detect", "prepare", "plan"]),
        ({"max_length": 16}, ["prepare", "plan"]),
        ({"lr": 1e-3}, ["plan"]),
        ({"threads": 1}, ["machine", "plan"]),
        ({"nodes_wait": 60.0}, []),
    )
    for change, redone in changes:
        write_request(run, dataclasses.replace(read_request(run), **change))
        assert started(run) == redone, change
    assert started(run) == []
    settings = read_record(run, RunPlan).settings
    assert (settings.lr, settings.threads, settings.max_length) == (1e-3, 1, 16)
    write_request(run, dataclasses.replace(read_request(run), lr=None))
    assert started(run) == ["plan"]
    assert read_record(run, RunPlan).settings.lr != 1e-3


def test_changed_data_and_lost_artifacts_are_noticed(bert, tmp_path):
    data = labeled(tmp_path / "a.jsonl")
    run = new_run(tmp_path, data=str(data), model=bert)
    started(run)
    (run / "prepared" / "manifest.json").unlink()
    assert started(run) == ["prepare"]
    (run / "plan.json").write_text("{")
    assert started(run) == ["plan"]
    with data.open("a") as file:
        file.write('{"text": "w5 w6 w7", "label": "c1"}\n')
    assert started(run) == ["detect", "prepare", "plan"]
    assert read_record(run, DatasetFacts).rows == 61


def test_a_changed_split_next_to_the_data_is_noticed(bert, tmp_path):
    data, beside = labeled(tmp_path / "train.jsonl"), labeled(tmp_path / "val.jsonl")
    run = new_run(tmp_path, data=str(data), model=bert)
    started(run)
    assert read_record(run, DatasetFacts).splits["validation"] == 60
    with beside.open("a") as file:
        file.write('{"text": "w5 w6 w7", "label": "c1"}\n')
    assert started(run) == ["detect", "prepare", "plan"]
    assert started(run) == []


@pytest.mark.parametrize(
    ("stage", "left"),
    [
        ("read_machine", ["machine", "prepare", "plan"]),  # which is asked for while the data is read
        ("detect_data", ALL),
        ("take_model", ["machine", "model", "prepare", "plan"]),
        ("prepare_data", ["prepare", "plan"]),
        ("prove", []),
    ],
)
def test_a_preparation_that_was_cut_off_continues(bert, tmp_path, monkeypatch, stage, left):
    run = new_run(tmp_path, data=str(labeled(tmp_path / "a.jsonl")), model=bert)
    home = stages if stage == "prove" else stages.inputs
    whole = getattr(home, stage)

    def cut(*given: object) -> None:
        whole(*given)  # its artifact is written, but not that it is whole
        raise KeyboardInterrupt

    monkeypatch.setattr(home, stage, cut)
    with pytest.raises(KeyboardInterrupt):
        started(run)
    monkeypatch.setattr(home, stage, whole)
    assert started(run) == left
    assert read_record(run, Proof).state == "skipped"
    assert started(run) == []


def test_long_texts_are_read_in_windows_by_themselves(bert, tmp_path):
    run = new_run(tmp_path, data=str(labeled(tmp_path / "a.jsonl", length=150)), model=bert)
    started(run)
    plan = read_record(run, RunPlan)
    assert plan.choices["overlong"].value == "window"
    assert plan.choices["max_length"].value == 64
    lengths = open_lengths(run / "prepared", "train")
    assert lengths.max() <= 64
    assert len(lengths) > read_record(run, DatasetFacts).splits["train"]


def test_class_weights_follow_the_numbers_of_the_labels(bert, tmp_path):
    def make(draws: random.Random, at: int) -> dict[str, object]:
        return {"text": words(draws), "label": "10" if at % 6 == 0 else "2" if at % 2 else "1"}

    run = new_run(
        tmp_path, data=str(rows(tmp_path / "a.jsonl", make, 120)), model=bert, class_weights="balanced", task="classify"
    )
    started(run)
    labels = require_manifest(run / "prepared").labels
    assert labels == ("1", "2", "10")
    counts = read_record(run, DatasetFacts).labels
    weights = read_record(run, RunPlan).settings.options["class_weights"]
    assert sorted(zip(weights, labels, strict=True))[-1][1] == "10"  # the rarest
    assert [round(weight * counts[label], 2) for weight, label in zip(weights, labels, strict=True)] == [40.0] * 3


def test_a_begun_run_keeps_learning_and_needs_no_data(bert, tmp_path):
    data = labeled(tmp_path / "a.jsonl")
    run = new_run(tmp_path, data=str(data), model=bert)
    started(run)
    before = read_record(run, RunPlan).settings
    attempt_folder(run, 1).mkdir(parents=True)
    data.unlink()
    write_request(run, dataclasses.replace(read_request(run), processes=2, lr=0.5))
    assert started(run) == ["machine", "plan"]
    after = read_record(run, RunPlan).settings
    assert (after.processes, after.lr, after.batch_size) == (2, before.lr, before.batch_size)


def test_a_refused_number_of_processes_is_forgotten(bert, tmp_path):
    run = new_run(tmp_path, data=str(labeled(tmp_path / "a.jsonl")), model=bert, epochs=2)
    started(run)
    attempt_folder(run, 1).mkdir(parents=True)
    asked = dataclasses.replace(read_request(run), processes=64)
    write_request(run, asked, data_sha256="abc")
    with pytest.raises(HoldfastError) as refused:
        started(run)
    assert refused.value.setting == "processes"
    assert read_request(run) == dataclasses.replace(asked, processes=1, nodes=1)
    started(run)
    assert read_record(run, RunPlan).processes == 1


def test_a_batch_size_per_device_is_planned_as_its_whole(bert, tmp_path):
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    run = new_run(tmp_path, data=str(labeled(tmp_path / "a.jsonl")), model=bert, **given)
    started(run)
    settings = read_record(run, RunPlan).settings
    assert (settings.batch_size, settings.per_device_train_batch_size) == (12, None)
