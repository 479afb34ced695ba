"""What a training run asks of its supervision."""

import dataclasses
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core import runfolder
from holdfast.core.artifacts import read_artifact
from holdfast.core.facts import ModelFacts
from holdfast.core.notice import read_notice
from holdfast.core.plan import Choice
from holdfast.core.records import (
    LeaseNotice,
    MemoryEstimate,
    Proof,
    RunPlan,
    write_record,
    write_request,
)
from holdfast.core.setting_values import make_request
from holdfast.core.settings import EngineSettings
from holdfast.models.store import ModelFolder
from holdfast.pipeline.train_plan import keep_learning, proven_choices, proven_settings
from holdfast.runs import lease as leases
from holdfast.runs import train_run
from holdfast.runs import train_spec as spec
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.lease import LostLease
from holdfast.runs.stop_signals import Stopped, asked_by_signals
from holdfast.runs.train_run import resume_train
from holdfast.runs.train_spec import memory_key, part_spec, train_spec
from holdfast.supervisor.clocks import Clocks

PLAN = RunPlan(
    task="classify",
    model=ModelFacts(name="minilm", folder="/models/minilm"),
    choices={"threads": Choice(2, "x"), "lr": Choice(1e-4, "x")},
    settings=EngineSettings(task="classify", model="", prepared="/p", run="/r", precision="bf16", threads=2),
    memory=MemoryEstimate(need_bytes=0, libraries_bytes=0),
)


@pytest.fixture
def request_of_train(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_request({"data": str(tmp_path / "reviews.csv")})


def test_successful_settings_are_remembered(request_of_train, tmp_path):
    job = train_spec(tmp_path / "one", request_of_train, PLAN)
    assert job.memory
    job.memory.remember(job.memory_key, job.words, {"threads": 1}, attempts=2)
    again = train_spec(tmp_path / "two", request_of_train, PLAN)
    assert again.memory
    known = again.memory.find(again.memory_key)
    assert known
    assert known.changes == {"threads": 1}


@pytest.mark.parametrize("wish", [{"threads": 2}, {"device": "cpu"}, {"allow_changes": True}, {"data": "other.csv"}])
def test_other_wishes_are_another_kind_of_run(request_of_train, wish):
    assert memory_key(request_of_train, PLAN) != memory_key(dataclasses.replace(request_of_train, **wish), PLAN)


def test_started_run_keeps_its_plan_after_new_preparation():
    there = EngineSettings(task="classify", model="", prepared="/new/prepared", run="/new", precision="fp32", threads=1)
    kept = keep_learning(PLAN, replace(PLAN, settings=there), 3)
    assert (kept.settings.run, kept.settings.prepared) == ("/new", "/new/prepared")
    assert (kept.settings.precision, kept.settings.threads) == ("bf16", 2)
    assert kept.changed_after_attempt == 0


def test_changing_processes_keeps_learning_settings(tmp_path):
    (tmp_path / "attempts" / "03").mkdir(parents=True)
    earlier = replace(PLAN, settings=dataclasses.replace(PLAN.settings, options={"lora": {}}))
    two = dataclasses.replace(PLAN.settings, threads=1, processes=2, precision="fp32")
    choices = {"processes": Choice(2, "as requested"), "lr": Choice(9.0, "x")}
    plan = keep_learning(earlier, replace(PLAN, settings=two, choices=choices, processes=2), 3)
    settings = plan.settings
    assert (settings.threads, settings.processes, settings.precision, settings.options) == (1, 2, "bf16", {"lora": {}})
    assert plan.choices["lr"].value == 1e-4
    proof = Proof(state="done", settings={"threads": 8, "packing": False}, choices={"threads": Choice(8, "timed")})
    proven = proven_settings(plan, proof)
    assert (proven.threads, proven.packing) == (1, False)  # timed with another number of processes
    assert "threads" not in proven_choices(plan, proof)
    assert spec._dropped_overrides(tmp_path, plan) == {"processes", "threads", "shard"}
    (tmp_path / "attempts" / "04").mkdir()
    assert spec._dropped_overrides(tmp_path, plan) == frozenset()  # what the ladder changed since counts


@pytest.fixture
def own_model(tmp_path, monkeypatch) -> Path:
    """Where this machine has the model."""
    own = tmp_path / "models" / "minilm"
    monkeypatch.setattr(spec, "find_model", lambda request, task: ModelFolder(name="minilm", folder=own, source=""))
    return own


def test_member_trains_the_leaders_plan_with_local_files(request_of_train, tmp_path, own_model):
    there = {"run": "/mnt/run", "prepared": "/mnt/run/prepared", "model": "/mnt/home/minilm", "threads": 2}
    write_record(tmp_path, replace(PLAN, settings=dataclasses.replace(PLAN.settings, **there), nodes=2))
    part = runfolder.part_folder(runfolder.attempt_folder(tmp_path, 1), "b")
    part.mkdir(parents=True)
    asked = dataclasses.replace(request_of_train, nodes=3)  # said here as the other one said 2, which leads
    launch = part_spec(tmp_path, asked, EngineChildren(tmp_path)).make_launch(part, {"threads": 1}, False)
    told = read_artifact(part / runfolder.SETTINGS)
    here = {"run": str(tmp_path), "prepared": str(tmp_path / "prepared"), "model": str(own_model), "threads": 1}
    assert {name: told[name] for name in here} == here
    assert launch.is_of_ranks
    assert "--nnodes 2" in " ".join(launch.command)


def test_takeover_uses_the_local_model(request_of_train, tmp_path, own_model):
    attempt = runfolder.attempt_folder(tmp_path, 2)
    attempt.mkdir(parents=True)
    settings = dataclasses.replace(PLAN.settings, model="/home/of/the/lost/machine/minilm")
    planned = replace(PLAN, settings=settings)
    train_spec(tmp_path, request_of_train, planned).make_launch(attempt, {}, True)
    assert read_artifact(attempt / runfolder.SETTINGS)["model"] == str(own_model)


@pytest.fixture
def planning(request_of_train, tmp_path, monkeypatch):
    """Resume a run in which this happens while it is planned."""

    def resume(happens) -> None:
        write_request(tmp_path, dataclasses.replace(request_of_train, out=str(tmp_path)))
        monkeypatch.setattr(train_run, "_prepare", lambda *_: happens())
        resume_train(tmp_path, on_event=lambda event: None, guard=asked_by_signals)

    return resume


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_during_planning_releases_the_run(planning, tmp_path, number):
    before = signal.signal(number, signal.SIG_DFL)  # a shell lets what it starts in the background ignore SIGINT
    try:
        with pytest.raises(Stopped):
            planning(lambda: signal.raise_signal(number))
    finally:
        signal.signal(number, before)
    said = read_notice(tmp_path / runfolder.LEASES / "000001" / runfolder.NOTICE, LeaseNotice).said
    assert (said.state, said.result, said.exit_code) == ("released", "stopped", 128 + number)


def test_run_taken_over_during_planning_is_left_alone(planning, tmp_path, monkeypatch):
    def hang() -> None:
        (tmp_path / runfolder.LEASES / "000002").mkdir()  # by another machine, which trains
        runfolder.attempt_folder(tmp_path, 1).mkdir(parents=True)
        monkeypatch.setattr(leases, "read_clocks", lambda: Clocks(1e11, 1e11))

    with pytest.raises(LostLease):
        planning(hang)
    assert not any(runfolder.attempt_folder(tmp_path, 1).iterdir())
