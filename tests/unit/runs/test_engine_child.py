"""How the engine's processes are started: the same environment for proof and attempts, a spare only where it fits."""

import pytest

from holdfast.core.events import Progressed
from holdfast.core.records import read_record
from holdfast.core.settings import EngineSettings
from holdfast.runs import engine_child
from holdfast.runs.engine_child import ENGINE, EngineChildren
from tests.unit.supervisor.test_ladder import engine_settings


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """Every spare that would have been started or ended."""
    done: list[str] = []
    monkeypatch.setattr(engine_child.Spare, "make", lambda self: done.append("made"))
    monkeypatch.setattr(engine_child.Spare, "close", lambda self: done.append("closed"))
    monkeypatch.setattr(engine_child.sys, "platform", "linux")
    monkeypatch.setattr(engine_child, "_has_room", lambda: True)
    return done


def test_settings_take_the_small_names_and_the_environment_the_capitals(tmp_path):
    attempt = tmp_path / "attempts" / "01"
    attempt.mkdir(parents=True)
    changes = {"threads": 1, "MKL_DEBUG": "1"}
    launch = EngineChildren(tmp_path).launch(attempt, engine_settings(device="cpu", threads=2), changes)
    settings = read_record(attempt, EngineSettings)
    assert (settings.device, settings.threads) == ("cpu", 1)
    assert launch.environment["MKL_DEBUG"] == "1"
    assert launch.environment["HF_HUB_OFFLINE"] == "1"
    assert launch.command[1:] == ("-m", ENGINE, str(attempt))
    assert launch.spare is not None


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
def test_different_device_gets_a_new_process(tmp_path, made, device):
    launch = EngineChildren(tmp_path).launch(tmp_path, engine_settings(device=device), {})
    assert launch.spare is None
    assert made == ["closed"]


def test_a_spare_is_made_once_after_a_while_of_steps(tmp_path, made, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(engine_child.time, "monotonic", lambda: now[0])
    children = EngineChildren(tmp_path)
    for at, phase in ((100.0, "load"), (101.0, "step"), (120.0, "step")):
        now[0] = at
        children.hear(Progressed(phase=phase))
    assert made == []
    for at in (121.5, 130.0, 200.0):
        now[0] = at
        children.hear(Progressed(phase="step"))
    assert made == ["made"]


@pytest.mark.parametrize(("system", "has_room"), [("darwin", True), ("linux", False)])
def test_no_spare_on_other_systems_or_where_memory_is_short(tmp_path, made, monkeypatch, system, has_room):
    monkeypatch.setattr(engine_child.sys, "platform", system)
    monkeypatch.setattr(engine_child, "_has_room", lambda: has_room)
    EngineChildren(tmp_path).warm_up()
    assert made == []


def test_several_processes_are_a_torchrun_job_without_restarts(tmp_path, made, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("RANK", "3")
    launch = EngineChildren(tmp_path).launch(tmp_path, engine_settings(device="cpu", processes=2, threads=4), {})
    words = " ".join(launch.command[1:])
    assert words.startswith("-m torch.distributed.run --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d")
    assert "--rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1 --max-restarts 0" in words
    assert words.endswith(f"-m {ENGINE} {tmp_path}")
    assert (launch.environment["OMP_NUM_THREADS"], launch.environment["GLOO_SOCKET_IFNAME"]) == ("4", "lo")
    assert "RANK" not in launch.environment
    assert (launch.spare, launch.is_of_ranks, made) == (None, True, ["closed"])


def test_machines_start_first_and_get_the_address_later(tmp_path, made, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("PET_NODE_RANK", "7")
    settings = engine_settings(threads=4)
    launch = EngineChildren(tmp_path).launch(tmp_path, settings, {}, nodes=3)
    words = " ".join(launch.command[1:])
    assert words.startswith("-m torch.distributed.run --nnodes 3 --nproc-per-node 1 --rdzv-backend static ")
    assert not {"GLOO_SOCKET_IFNAME", "PET_NODE_RANK"} & launch.environment.keys()
    assert (launch.spare, launch.is_of_ranks, made) == (None, True, ["closed"])


def test_spare_waits_only_for_a_single_process(tmp_path, made):
    children = EngineChildren(tmp_path, processes=2)
    children.warm_up()
    assert made == []
    children.launch(tmp_path, engine_settings(device="cpu", processes=2), {"processes": 1, "threads": 2})
    children.warm_up()
    assert made == ["made"]


def test_variable_set_by_a_remedy_is_kept(tmp_path):
    launch = EngineChildren(tmp_path).launch(
        tmp_path, engine_settings(processes=2, threads=4), {"OMP_NUM_THREADS": "1"}
    )
    assert launch.environment["OMP_NUM_THREADS"] == "1"
