"""What is given as a run and is none gets one answer from every command: the path, what it is, what to give instead."""

import json
from pathlib import Path

import pytest

from holdfast.core.errors import RequestError
from holdfast.core.setting_values import make_request
from holdfast.runs.exporters import export_run
from holdfast.runs.finished_model import find_model
from holdfast.runs.new_train import start_train
from holdfast.runs.report.page import write_report
from holdfast.runs.resume_run import ask_to_stop, command_of
from holdfast.runs.run_path import current_run, require_request
from holdfast.runs.state import read_state
from holdfast.runs.support_bundle import pack_run

COMMANDS = {
    "status": read_state,
    "resume": command_of,
    "stop": lambda run: ask_to_stop(run, at_once=False, wait_seconds=1),
    "report": write_report,
    "bundle": pack_run,
    "export": lambda run: export_run(run, "script"),
    "predict": find_model,
    "train --from": lambda run: start_train(make_request({"from_run": str(run)})),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a run in runs/, and with what is none."""
    (tmp_path / "runs" / "bank-1" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "bank-1" / "request.json").write_text(json.dumps({"kind": "train", "data": "bank.csv"}))
    (tmp_path / "empty").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    (tmp_path / "bank.csv").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("given", "what", "found", "advice"),
    [
        ("nowhere", "no such folder: {}", "", "use the folder that `holdfast train` or `holdfast run` printed"),
        ("bank", "no such folder: {}", "", "did you mean {here}/runs/bank-1?"),  # not bank.csv
        ("bank-1", "no such folder: {}", "", "did you mean {here}/runs/bank-1?"),
        ("runs/bank-2", "no such folder: {}", "", "did you mean {here}/runs/bank-1?"),
        ("empty", "{} is not the folder of a run", "it is empty", "use the folder that `holdfast train`"),
        ("project", "{} is not the folder of a run", "it contains train.py", "use the folder that `holdfast train`"),
        ("bank.csv", "{} is not the folder of a run", "it is a file", "use the folder that `holdfast train`"),
        ("runs", "{} is not the folder of a run", "it contains bank-1", "did you mean {here}/runs/bank-1?"),
        ("runs/bank-1/model", "{} is not the folder of a run", "it is empty", "did you mean {here}/runs/bank-1?"),
    ],
)
def test_every_command_refuses_other_folders_alike(here, command, given, what, found, advice):
    with pytest.raises(RequestError) as refused:
        command(Path(given))
    assert refused.value.what.removesuffix(" or of a model") == what.format(here / given)
    assert refused.value.found == found
    assert refused.value.try_next[0].startswith(advice.format(here=here))


def test_a_request_that_is_damaged_is_named(here):
    (here / "runs" / "bank-1" / "request.json").write_text("")
    for command in (require_request, command_of):
        with pytest.raises(RequestError, match=r"request\.json cannot be read"):
            command(here / "runs" / "bank-1")


@pytest.mark.parametrize("command", ["predict", "train --from"])
def test_a_supervised_command_has_no_model(here, command):
    (here / "runs" / "bank-1" / "request.json").write_text(json.dumps({"kind": "command", "command": ["true"]}))
    with pytest.raises(RequestError, match="your own command") as refused:
        COMMANDS[command](here / "runs" / "bank-1")
    assert "holdfast train DATA --model THAT_FOLDER" in refused.value.try_next


def test_newest_fold_stands_for_its_run_until_the_end(here):
    run = here / "runs" / "bank-1"
    assert current_run(run) == run
    for fold in (2, 9, 10):
        (run / f"fold-{fold}").mkdir()
        (run / f"fold-{fold}" / "request.json").write_text("{}")
    assert current_run(run) == run / "fold-10"
    (run / "result.json").write_text("{}")
    assert current_run(run) == run


def test_train_from_a_run_of_several_machines_uses_one(here):
    earlier = here / "runs" / "bank-1"
    saved = {"kind": "train", "data": str(here / "bank.csv"), "out": str(earlier), "nodes": 2, "processes": 2}
    (earlier / "request.json").write_text(json.dumps(saved))
    (earlier / "model" / "model.safetensors").touch()
    (earlier / "model" / "holdfast.json").write_text('{"task": "classify"}')
    run = start_train(make_request({"from_run": str(earlier)}))
    asked = json.loads((run / "request.json").read_text())
    assert (asked["nodes"], asked["processes"], asked["model"]) == (None, 2, str(earlier / "model"))
