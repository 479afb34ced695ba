"""Several machines of one run: the first one's words count, and who says something else is refused."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.runfolder import REQUEST
from holdfast.runs.command import make_request
from holdfast.runs.join import join_folder
from holdfast.runs.rendezvous import rename

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2")


@pytest.fixture
def join(tmp_path, monkeypatch):
    def ask(node: str, *more: str, folder: Path | None = tmp_path / "run", **options: object) -> Path:
        monkeypatch.setenv("HOLDFAST_NODE", node)
        return join_folder(make_request((*TORCHRUN, *more), **{"nodes": 2, **options}), folder)

    return ask


def test_machines_with_the_same_words_share_a_run(join):
    first = join("a", "train.py")
    assert join("b", "train.py") == first
    assert stat.S_IMODE((first / REQUEST).stat().st_mode) == 0o600
    assert {path.name for path in (first / "nodes").iterdir()} == {"a", "b"}


@pytest.mark.parametrize("option", ["--node-rank", "--node_rank", "--local-addr", "--machine_rank"])
def test_which_machine_it_is_each_may_say_for_itself(join, option):
    join("a", option, "0", "train.py")
    join("b", f"{option}=1", "train.py")


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        (("other.py",), {}, "the command is not the same here"),
        (("train.py",), {"max_attempts": 3}, "--max-attempts is not the same here"),
        (("train.py",), {"resume_args": ("--resume",)}, "--resume-args is not the same here"),
        (("train.py",), {"nodes": 3}, "holds another run"),
    ],
)
def test_a_machine_with_other_words_is_refused_with_both(join, tmp_path, words, options, told):
    join("a", "train.py")
    with pytest.raises(RequestError, match=told) as refused:
        join("b", *words, **options)
    assert refused.value.seen
    assert not (tmp_path / "run" / "nodes" / "b").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "/etc"])
def test_the_name_of_a_machine_stays_in_the_run(join, name):
    with pytest.raises(RequestError, match="no name for a machine"):
        join(name, "train.py")


def test_a_folder_that_cannot_be_meant_is_refused(join, tmp_path):
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
    with pytest.raises(MachineError, match="cannot be written"):
        join("a", "train.py")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("--rdzv-id", "job7", "train.py"), ("--rdzv-id", "job7-x", "train.py")),
        (("--rdzv_id=job7", "train.py", "--rdzv-id", "mine"), ("--rdzv_id=job7-x", "train.py", "--rdzv-id", "mine")),
        (("train.py",), ("train.py",)),
    ],
)
def test_each_attempt_meets_under_a_name_of_its_own(given, wanted):
    assert rename((*TORCHRUN, *given), "x") == (*TORCHRUN, *wanted)
