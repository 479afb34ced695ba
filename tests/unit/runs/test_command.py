"""A command as a run: what is refused, what is written down, how an attempt is started."""

import json
import stat
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.records import read_request
from holdfast.core.runfolder import REQUEST, SETTINGS
from holdfast.runs.command import (
    PRELOAD,
    CommandRequest,
    command_spec,
    make_folder,
    make_request,
    remove_own_checkpoints,
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0])
def test_seconds_out_of_range_are_refused(seconds):
    with pytest.raises(RequestError, match=r"--nodes-wait .*out of range"):
        make_request(("true",), nodes=2, nodes_wait_seconds=seconds)
    with pytest.raises(RequestError, match=r"--step-timeout .*out of range"):
        make_request(("true",), step_timeout_seconds=seconds)


@pytest.mark.parametrize("command", [(), ("no-such-command",), (sys.executable, "absent.py"), ("./train.py",)])
def test_unstartable_request_is_refused_before_creating_files(command):
    with pytest.raises(RequestError):
        make_request(command)
    assert not Path("runs").exists()


def test_script_alone_is_refused_with_advice():
    Path("train.py").touch()
    with pytest.raises(RequestError) as refused:
        make_request(("train.py",))
    assert refused.value.try_next == ("holdfast run -- python train.py",)


def test_secrets_are_not_written_and_files_are_private(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hf_secret@db.example/train")
    monkeypatch.setenv("TRACKER", "https://t.example/?api_key=hf_secret&x=1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run = make_folder(make_request((sys.executable, "-V")), None)
    text = (run / REQUEST).read_text()
    assert "hf_secret" not in text
    assert json.loads(text)["environment"]["OMP_NUM_THREADS"] == "3"
    assert stat.S_IMODE((run / REQUEST).stat().st_mode) == 0o600


def test_a_request_reads_back_as_it_was_written():
    request = make_request((sys.executable, "-V"), resume_args=("--resume", "last"), max_attempts=3)
    run = make_folder(request, Path("here"))
    assert read_request(run) == request


def test_folders_are_numbered_and_never_shared():
    Path("train.py").touch()
    request = make_request((sys.executable, "train.py"))
    assert [make_folder(request, None).name for _ in range(2)] == ["train-1", "train-2"]
    with pytest.raises(RequestError, match="not empty"):
        make_folder(request, Path("runs/train-1"))


@pytest.mark.parametrize("name", ["../up", "a/b", ".."])
def test_a_name_stays_under_runs(name):
    with pytest.raises(RequestError):
        make_folder(CommandRequest(command=("true",), cwd="."), None, name)


def test_unwritable_folder_is_a_machine_error(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MachineError):
        make_folder(CommandRequest(command=("true",), cwd="."), Path("run"))


@pytest.mark.parametrize("asked", [None, "a/b", "empty"])
def test_a_full_disk_leaves_no_folder_of_ours_behind(monkeypatch, asked):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    Path("empty").mkdir()
    monkeypatch.setattr("holdfast.runs.command.write_request", refuse)
    with pytest.raises(MachineError) as refused:
        make_folder(CommandRequest(command=("true",), cwd="."), Path(asked) if asked else None)
    assert refused.value.slug == "disk-full"
    assert [path.name for path in Path().iterdir()] == ["empty"]


@pytest.mark.parametrize("place", ["file", "file/run", "full"])
def test_file_or_nonempty_folder_is_refused_as_run_folder(place):
    Path("file").touch()
    Path("full").mkdir()
    Path("full/notes.txt").touch()
    with pytest.raises(RequestError):
        make_folder(CommandRequest(command=("true",), cwd="."), Path(place))
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]


def test_empty_folder_is_used():
    Path("empty").mkdir()
    assert (make_folder(CommandRequest(command=("true",), cwd="."), Path("empty")) / REQUEST).exists()


def test_changes_become_settings_variables_and_factors(tmp_path):
    request = CommandRequest(
        command=("python", "t.py"), cwd="/", environment={"PYTHONPATH": "/mine"}, resume_args=("-r",)
    )
    launch = command_spec(request).make_launch(
        tmp_path, {"loader_workers": 0, "OMP_NUM_THREADS": "1", "micro_batch_factor": 4}, True
    )
    settings = json.loads((tmp_path / SETTINGS).read_text())
    assert settings["changes"] == {"loader_workers": 0}
    assert settings["environment"] == {"OMP_NUM_THREADS": "1"}
    assert (settings["micro_batch_factor"], settings["eval_micro_batch_factor"], settings["resume"]) == (4, 1, True)
    assert launch.command == ("python", "t.py")  # nothing was saved that "-r" could continue from
    assert launch.environment["OMP_NUM_THREADS"] == "1"
    assert launch.environment["PYTHONPATH"] == f"{PRELOAD}:/mine"


def test_learning_changes_are_remembered_only_if_allowed():
    command = (sys.executable, "-c", "pass")
    plain, allowed = (command_spec(make_request(command, allow_changes=allow)) for allow in (False, True))
    assert plain.memory_key != allowed.memory_key


def test_once_it_has_finished_only_our_own_checkpoints_are_removed(tmp_path):
    for name in ("train-1/checkpoint-30", "fit-2", "theirs"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    remove_own_checkpoints(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["theirs"]
    (tmp_path / "checkpoints" / "theirs").rmdir()
    remove_own_checkpoints(tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    remove_own_checkpoints(tmp_path)
    assert command_spec(CommandRequest(command=("true",), cwd=".")).clean_up is remove_own_checkpoints
