"""Several machines of one run: the first one's words count, and who says something else is refused."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.runfolder import REQUEST
from holdfast.core.setting_values import make_request as make_train_request
from holdfast.runs.command import make_request
from holdfast.runs.join import join_folder
from holdfast.runs.new_train import discard, start_train
from holdfast.runs.rendezvous import MeetingPlace, rename, with_rendezvous
from holdfast.runs.train_run import own_request
from holdfast.supervisor.child import Launch

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2")


@pytest.fixture
def join(tmp_path, monkeypatch):
    def ask(node: str, *more: str, folder: Path | None = tmp_path / "run", **options: object) -> Path:
        monkeypatch.setenv("HOLDFAST_NODE", node)
        return join_folder(make_request((*TORCHRUN, *more), **{"nodes": 2, **options}), folder)

    return ask


def test_machines_with_same_command_share_a_run(join):
    first = join("a", "train.py")
    assert join("b", "train.py") == first
    assert stat.S_IMODE((first / REQUEST).stat().st_mode) == 0o600
    assert {path.name for path in (first / "nodes").iterdir()} == {"a", "b"}


@pytest.mark.parametrize("option", ["--node-rank", "--node_rank", "--local-addr", "--machine_rank"])
def test_machine_name_can_be_overridden(join, option):
    join("a", option, "0", "train.py")
    join("b", f"{option}=1", "train.py")


@pytest.mark.parametrize(
    ("words", "options", "setting"),
    [
        (("other.py",), {}, "command"),
        (("train.py",), {"max_attempts": 3}, "max_attempts"),
        (("train.py",), {"resume_args": ("--resume",)}, "resume_args"),
        (("train.py",), {"nodes": 3}, "nodes"),
    ],
)
def test_a_machine_with_another_command_is_refused_with_both(join, tmp_path, words, options, setting):
    join("a", "train.py")
    with pytest.raises(RequestError) as refused:
        join("b", *words, **options)
    assert refused.value.setting == setting
    assert refused.value.found
    assert not (tmp_path / "run" / "nodes" / "b").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "/etc"])
def test_the_name_of_a_machine_stays_in_the_run(join, name):
    with pytest.raises(RequestError, match="not a valid machine name"):
        join(name, "train.py")


def test_too_long_name_is_reported(join):
    with pytest.raises(RequestError, match=r"the name of this machine, a{20}\.\.\., is too long") as refused:
        join("a" * 300, "train.py")
    assert "300 bytes" in refused.value.found


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Join a training run of two machines, whose data lie at one path on each."""
    (tmp_path / "rows.csv").write_text("text,label\nfine,good\n")

    def ask(node: str, **options: object) -> Path:
        monkeypatch.setenv("HOLDFAST_NODE", node)
        given = {"data": str(tmp_path / "rows.csv"), "out": str(tmp_path / "trained"), "nodes": 2, **options}
        return start_train(make_train_request(given))

    return ask


def test_machines_share_a_run_with_own_wait_limits(train, monkeypatch):
    first = train("a", processes=2)
    assert train("b", processes=2, nodes_wait=5) == first
    for node, seconds in (("a", 900), ("b", 5), ("a machine that resumes and never joined", 900)):
        monkeypatch.setenv("HOLDFAST_NODE", node)
        asked = own_request(first)
        assert (asked.nodes, asked.processes, asked.out, asked.nodes_wait) == (2, 2, str(first), seconds)


@pytest.mark.parametrize("options", [{"processes": 2}, {"save_seconds": 1}, {"text_column": ("title",)}, {"nodes": 3}])
def test_a_machine_that_would_train_differently_is_refused_with_both(train, options):
    train("a")
    with pytest.raises(RequestError) as refused:
        train("b", **options)
    assert refused.value.setting == next(iter(options))
    assert refused.value.found


def test_a_machine_with_other_data_is_refused(train, tmp_path):
    train("a")
    (tmp_path / "rows.csv").write_text("text,label\nfine,poor\n")
    with pytest.raises(RequestError) as refused:
        train("b")
    assert refused.value.setting == "data"


def test_data_may_be_a_folder(train, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "one.csv").write_text("text,label\nfine,good\n")
    train("a", data=str(folder))
    train("b", data=str(folder))
    (folder / "one.csv").rename(folder / "two.csv")
    with pytest.raises(RequestError) as refused:
        train("b", data=str(folder))
    assert refused.value.setting == "data"


def test_refused_request_can_be_followed_by_another(train):
    run = train("a")
    discard(run)
    assert (run / "nodes" / "a").is_dir()  # the others read their last words there
    assert train("b", processes=2) == run


def test_machines_that_train_need_a_folder_to_meet(train):
    with pytest.raises(RequestError) as refused:
        train("a", out=None)
    assert refused.value.setting == "out"


def test_unlikely_folder_is_refused(join, tmp_path):
    with pytest.raises(RequestError, match="--nodes needs --run"):
        join("a", folder=None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    for name in ("full", "full/thesis.txt"):
        with pytest.raises(RequestError):
            join("a", folder=tmp_path / name)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / REQUEST).write_text(json.dumps({"kind": "train"}))
    with pytest.raises(RequestError, match="holds another run"):
        join("a", folder=tmp_path / "train")


def test_storage_without_links_will_do(join, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run = join("a", "train.py")
    assert json.loads((run / REQUEST).read_text())["nodes"] == 2
    join("b", "train.py")


def test_storage_that_cannot_be_written_is_the_machines_fault(join, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MachineError, match="cannot write"):
        join("a", "train.py")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("--rdzv-id", "job7", "train.py"), ("--rdzv-id", "job7-x", "train.py")),
        (("--rdzv_id=job7", "train.py", "--rdzv-id", "mine"), ("--rdzv_id=job7-x", "train.py", "--rdzv-id", "mine")),
        (("train.py",), ("train.py",)),
    ],
)
def test_each_attempt_has_its_own_rendezvous(given, wanted):
    assert rename((*TORCHRUN, *given), "x") == (*TORCHRUN, *wanted)


def test_engine_ranks_get_a_rendezvous_commands_do_not(tmp_path):
    meeting = MeetingPlace(name="x", host="127.0.0.1", port=4711)
    theirs = Launch(("torchrun", "train.py"), tmp_path, {}, tmp_path)
    assert with_rendezvous(theirs, meeting, 1).environment == {"PET_RDZV_ID": "x"}
    ours = Launch(("torchrun", "train.py"), tmp_path, {"GLOO_SOCKET_IFNAME": "eth7"}, tmp_path, is_of_ranks=True)
    told = with_rendezvous(ours, meeting, 1).environment
    assert {name: told[f"PET_{name}"] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")} == {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "NODE_RANK": "1",
    }
    assert told["GLOO_SOCKET_IFNAME"] == "eth7"  # as asked
