"""What a training run asks of its supervision."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core import runfolder
from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import RequestError
from holdfast.core.notice import read_notice
from holdfast.core.request import DATA_SHA256, make_request, to_saved
from holdfast.models.store import ModelFolder
from holdfast.runs import lease as leases
from holdfast.runs import train
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.lease import LostLease
from holdfast.runs.stopping import Stopped, asked_by_signals
from holdfast.runs.train import make_job, memory_key, part_job, resume_train
from holdfast.supervisor.clocks import Clocks

PLAN = {"task": "classify", "settings": {"task": "classify", "device": "cpu"}, "model": {"folder": "/models/minilm"}}


@pytest.fixture
def request_of_train(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_request({"data": str(tmp_path / "reviews.csv")})


def test_what_made_a_run_finish_is_remembered_for_the_next_of_its_kind(request_of_train, tmp_path):
    job = make_job(tmp_path / "one", request_of_train, PLAN)
    assert job.memory
    job.memory.remember(job.memory_key, job.words, {"threads": 1}, attempts=2)
    again = make_job(tmp_path / "two", request_of_train, PLAN)
    assert again.memory
    known = again.memory.find(again.memory_key)
    assert known
    assert known.changes == {"threads": 1}


@pytest.mark.parametrize("wish", [{"threads": 2}, {"device": "cpu"}, {"allow_changes": True}, {"data": "other.csv"}])
def test_other_wishes_are_another_kind_of_run(request_of_train, wish):
    assert memory_key(request_of_train, PLAN) != memory_key(replace(request_of_train, **wish), PLAN)


def test_what_was_proven_here_outlives_a_plan_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "fingerprint_of", lambda: "here")
    earlier = {"settings": {"threads": 2}, "variables": {"MKL_X": "1"}}
    anew = {"settings": {"threads": 1}, "task": "classify"}
    for machine, threads in (("here", 2), ("elsewhere", 1)):
        write_artifact(tmp_path, runfolder.PLAN, anew)
        train._keep_proven(tmp_path, {**earlier, "proof": {"machine": machine}})
        plan = read_artifact(tmp_path / runfolder.PLAN)
        assert (plan["settings"]["threads"], plan["task"]) == (threads, "classify")
        assert ("variables" in plan) == (machine == "here")


def test_a_run_that_goes_on_with_other_processes_keeps_all_that_is_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "fingerprint_of", lambda: "here")
    (tmp_path / "attempts" / "03").mkdir(parents=True)
    earlier = {
        "settings": {"threads": 2, "precision": "bf16", "options": {"lora": {}}},
        "choices": {"threads": {"value": 2, "because": "x"}, "lr": {"value": 1e-4, "because": "x"}},
        "forecast": {"seconds": 60, "made_at": 1.0},
        "proof": {"machine": "here"},
    }
    anew = {
        "settings": {"threads": 1, "processes": 2, "shard": False, "precision": "fp32", "options": {}},
        "choices": {"processes": {"value": 2, "because": "as asked"}, "lr": {"value": 9.0, "because": "x"}},
        "forecast": {"seconds": None},
    }
    write_artifact(tmp_path, runfolder.PLAN, anew)
    train._keep_proven(tmp_path, earlier)
    plan = read_artifact(tmp_path / runfolder.PLAN)
    assert {name: plan["settings"][name] for name in ("threads", "processes", "precision", "options")} == {
        "threads": 1,
        "processes": 2,
        "precision": "bf16",
        "options": {"lora": {}},
    }
    assert plan["choices"]["lr"]["value"] == 1e-4
    assert plan["forecast"] == {"seconds": None}  # it is measured again
    assert train._set_aside(tmp_path, plan) == {"processes", "threads", "shard"}
    (tmp_path / "attempts" / "04").mkdir()
    assert train._set_aside(tmp_path, plan) == frozenset()  # what the ladder changed since counts


@pytest.fixture
def own_model(tmp_path, monkeypatch) -> Path:
    """Where this machine has the model."""
    own = tmp_path / "models" / "minilm"
    monkeypatch.setattr(train, "find_model", lambda request, task: ModelFolder(name="minilm", folder=own, source=""))
    return own


def test_a_machine_that_takes_part_trains_what_was_planned_elsewhere_with_the_files_as_they_lie_here(
    request_of_train, tmp_path, own_model
):
    there = {"run": "/mnt/run", "prepared": "/mnt/run/prepared", "model": "/mnt/home/minilm", "threads": 2}
    planned = {"settings": {**PLAN["settings"], **there}, "choices": {"nodes": {"value": 2, "because": "as asked"}}}
    write_artifact(tmp_path, runfolder.PLAN, {**PLAN, **planned})
    part = runfolder.part_folder(runfolder.attempt_folder(tmp_path, 1), "b")
    part.mkdir(parents=True)
    asked = replace(request_of_train, nodes=3)  # said here as the other one said 2, which leads
    launch = part_job(tmp_path, asked, EngineChildren(tmp_path)).make_launch(part, {"threads": 1}, False)
    told = read_artifact(part / runfolder.SETTINGS)
    here = {"run": str(tmp_path), "prepared": str(tmp_path / "prepared"), "model": str(own_model), "threads": 1}
    assert {name: told[name] for name in here} == here
    assert launch.is_of_ranks
    assert "--nnodes 2" in " ".join(launch.command)


def test_a_machine_that_takes_over_takes_the_model_as_it_lies_there(request_of_train, tmp_path, own_model):
    attempt = runfolder.attempt_folder(tmp_path, 2)
    attempt.mkdir(parents=True)
    planned = {**PLAN, "settings": {**PLAN["settings"], "model": "/home/of/the/lost/machine/minilm"}}
    make_job(tmp_path, request_of_train, planned).make_launch(attempt, {}, True)
    assert read_artifact(attempt / runfolder.SETTINGS)["model"] == str(own_model)


def test_a_wish_that_was_refused_is_taken_back_and_nothing_else(request_of_train, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise RequestError("too many")

    monkeypatch.setattr(train, "walk", refuse)
    asked = replace(request_of_train, processes=64, nodes=2, out=str(tmp_path))
    saved = {**to_saved(asked), DATA_SHA256: "abc"}
    write_artifact(tmp_path, runfolder.REQUEST, saved)
    settings = {"run": str(tmp_path), "prepared": str(tmp_path / "prepared")}
    write_artifact(tmp_path, runfolder.PLAN, {"settings": settings, "choices": {"nodes": {"value": 2}}})
    children = EngineChildren(tmp_path, processes=2)
    with pytest.raises(RequestError, match="too many"):
        train._plan(tmp_path, asked, lambda event, details: None, children)
    assert read_artifact(tmp_path / runfolder.REQUEST) == {**saved, "processes": 1, "nodes": 2}


@pytest.fixture
def planning(request_of_train, tmp_path, monkeypatch):
    """Resume a run in which this happens while it is planned."""

    def resume(happens) -> None:
        write_artifact(tmp_path, runfolder.REQUEST, to_saved(replace(request_of_train, out=str(tmp_path))))
        monkeypatch.setattr(train, "_plan", lambda *_: happens())
        resume_train(tmp_path, on_event=lambda event, details: None, guard=asked_by_signals)

    return resume


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_while_it_is_planned_is_given_back_with_words(planning, tmp_path, number):
    before = signal.signal(number, signal.SIG_DFL)  # a shell lets what it starts in the background ignore SIGINT
    try:
        with pytest.raises(Stopped):
            planning(lambda: signal.raise_signal(number))
    finally:
        signal.signal(number, before)
    said = read_notice(tmp_path / runfolder.LEASES / "000001" / runfolder.NOTICE).said
    assert (said["state"], said["result"], said["exit_code"]) == ("released", "stopped", 128 + number)


def test_a_run_that_was_taken_over_while_it_was_planned_is_left_alone(planning, tmp_path, monkeypatch):
    def hang() -> None:
        (tmp_path / runfolder.LEASES / "000002").mkdir()  # by another machine, which trains
        runfolder.attempt_folder(tmp_path, 1).mkdir(parents=True)
        monkeypatch.setattr(leases, "read_clocks", lambda: Clocks(1e9, 1e9))

    with pytest.raises(LostLease):
        planning(hang)
    assert not any(runfolder.attempt_folder(tmp_path, 1).iterdir())
