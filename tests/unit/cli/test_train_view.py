"""What is shown of a training when its disk is full: that it is, and how far it has come all the same."""

import json

import pytest

from holdfast.cli.train_view import TrainView
from holdfast.core.runfolder import EVENTS, attempt_folder

FAILED = {"step": 12, "reason": "No space left on device", "is_full": True}


@pytest.fixture
def view(tmp_path):
    shown = TrainView()
    shown("run", {"folder": tmp_path})
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    shown("attempt", {"number": 1, "because": ""})
    yield shown
    shown.close()


def tell(run, **event):
    with (attempt_folder(run, 1) / EVENTS).open("a") as file:
        file.write(json.dumps(event) + "\n")


def test_a_full_disk_is_told_of_once_until_something_is_saved_again(view, tmp_path, capsys):
    tell(tmp_path, event="saved", step=6)
    view("save failed", FAILED)
    view("disk full", {"words": "the disk is full"})
    view("save failed", FAILED)
    said = " ".join(capsys.readouterr().out.split())
    assert said == "[!] train the disk is full: nothing is saved since step 6; make room"
    tell(tmp_path, event="saved", step=20)
    view("save failed", FAILED)
    assert "nothing is saved since step 20" in capsys.readouterr().out


def test_a_save_that_failed_for_another_reason_is_no_full_disk(view, capsys):
    view("save failed", FAILED | {"is_full": False})
    assert capsys.readouterr().out == ""


def test_a_disk_that_is_full_before_the_first_save_is_told_of(view, capsys):
    view("disk full", {"words": "the disk is full"})
    assert "the disk is full: nothing can be saved; make room" in " ".join(capsys.readouterr().out.split())
