"""Which of the files that a script has saved can be resumed from."""

import os
import zipfile

import pytest

from holdfast.core.event_log import EventLog
from holdfast.core.events import FileSaved
from holdfast.core.records import AttemptStart, CommandRequest, Outcome, write_record
from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.runs.script_checkpoints import newest_checkpoint

BEGAN = 1000.0


@pytest.fixture
def run(tmp_path):
    """A run in the folder it works in, whose first attempt died at step 30."""
    folder = tmp_path / "runs" / "train-1"
    first = attempt_folder(folder, 1)
    first.mkdir(parents=True)
    write_record(first, AttemptStart(number=1, started=BEGAN))
    write_record(first, Outcome(number=1, outcome="died", step_reached=30))
    return folder


def find(run, *arguments):
    cwd = run.parent.parent
    found = newest_checkpoint(
        CommandRequest(command=("python", "t.py", *arguments), cwd=str(cwd)), attempt_folder(run, 2)
    )
    return found and found.name


def save(path, time=BEGAN + 10, is_whole=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", "weights" * 100)
    if not is_whole:
        path.write_bytes(path.read_bytes()[:-30])
    os.utime(path, (time, time))
    return path


def report(run, path, step):
    EventLog(attempt_folder(run, 1) / EVENTS).write(FileSaved(path=str(path), step=step))


def test_newest_whole_checkpoint_of_this_run_is_found(run, tmp_path):
    assert find(run) is None
    save(tmp_path / "before.pt", BEGAN - 10)
    assert find(run) is None
    save(tmp_path / "out" / "one.pt", BEGAN + 1)
    save(tmp_path / "out" / "two.pt", BEGAN + 2)
    save(tmp_path / "out" / "three.pt", BEGAN + 3, is_whole=False)
    assert find(run) == "two.pt"


def test_files_of_other_runs_and_logs_are_no_checkpoints(run, tmp_path):
    save(tmp_path / "runs" / "train-2" / "model" / "model.pt")
    save(tmp_path / "train.bin")
    save(tmp_path / "train.log")
    assert find(run) is None


def test_reported_file_is_found_anywhere(run, tmp_path_factory):
    path = save(tmp_path_factory.mktemp("elsewhere") / "anything")
    assert find(run) is None
    report(run, path, 5)
    assert find(run) == "anything"


def test_renamed_draft_is_found_under_its_new_name(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    save(folder / "last.ckpt")
    report(run, folder / "draft.tmp", 5)
    assert find(run) == "last.ckpt"


def test_data_saved_before_training_is_no_checkpoint(run, tmp_path):
    path = save(tmp_path / "tokens.pt")
    report(run, path, 0)
    assert find(run) is None
    report(run, path, 4)
    assert find(run) == "tokens.pt"


def test_folder_in_an_argument_is_searched(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert find(run, f"--out={folder}") == "model.safetensors"
    (folder / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b"{}")
    assert find(run, f"--out={folder}") is None
