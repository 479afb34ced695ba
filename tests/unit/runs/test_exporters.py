"""What an export holds; that it trains to the same weights is seen in tests/lab/test_exported.py."""

import ast
import json
import re
from pathlib import Path

import pytest

from holdfast.core.errors import RequestError
from holdfast.core.facts import DatasetFacts
from holdfast.core.records import write_record
from holdfast.core.runfolder import attempt_folder
from holdfast.runs.exporters import export_run, parts_of, script_of
from holdfast.runs.state import read_state


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that was started: enough to be exported."""
    run, prepared, model = tmp_path / "run", tmp_path / "prepared", tmp_path / "minilm"
    for folder in (attempt_folder(run, 1), prepared, model):
        folder.mkdir(parents=True)
    settings = {"task": "classify", "model": str(model), "prepared": str(prepared), "run": str(run), "lr": 3e-4}
    (attempt_folder(run, 1) / "settings.json").write_text(json.dumps(settings | {"options": {"class_weights": [1, 2]}}))
    (prepared / "manifest.json").write_text('{"labels": ["a", "b"], "multi_label": false}')
    (prepared / "train.tokens.npy").write_bytes(b"x")
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (model / name).write_bytes(b"{}")
    (run / "request.json").write_text(json.dumps({"kind": "train", "data": 'C:\\data\\"odd" """name.csv'}))
    return run


@pytest.mark.parametrize("task", ["classify", "causal", "two-tower"])
def test_a_script_has_the_runs_settings_and_no_holdfast(run, task):
    settings = attempt_folder(run, 1) / "settings.json"
    settings.write_text(settings.read_text().replace('"classify"', f'"{task}"'))
    script = script_of(read_state(run), '"org/model"')
    tree = ast.parse(script)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(str(name).startswith("holdfast") for name in imported)
    assert "LR = 0.0003\n" in script
    assert 'OPTIONS = {"class_weights": [1, 2]}\n' in script
    assert 'MODEL = "org/model"\n' in script
    assert max(map(len, script.splitlines())) <= 120


@pytest.mark.parametrize("kind", ["script", "notebook", "docker"])
def test_an_export_is_whole_and_names_no_host(run, tmp_path, kind):
    folder = export_run(run, kind, tmp_path / "out")
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert "pytorch_model.bin" not in names
    if kind == "notebook":
        assert names == {"train.ipynb", "data.zip"}
    else:
        assert {"train.py", "requirements.txt", "manifest.json", "train.tokens.npy", "model.safetensors"} <= names
    text = "".join(path.read_text() for path in folder.iterdir() if path.is_file() and path.suffix != ".zip")
    assert not re.search(r"https?://|\w+\.(?:org|com|io|ai)\b", text)
    if kind == "docker":
        assert "FROM ${BASE}" in text
        assert "ARG BASE=python:3." in text


def test_export_refuses_a_folder_in_use(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(RequestError, match="already exists"):
        export_run(run, "script", tmp_path / "out")


def test_export_refuses_what_it_cannot_write(run, tmp_path):
    (run / "request.json").write_text('{"kind": "command", "command": ["python", "train.py"], "cwd": "/"}')
    with pytest.raises(RequestError, match="your own command"):
        export_run(run, "script")
    (run / "request.json").unlink()
    (tmp_path / "prepared" / "manifest.json").unlink()
    with pytest.raises(RequestError, match="prepared data of this run is gone"):
        export_run(run, "script")
    (attempt_folder(run, 1) / "settings.json").unlink()
    write_record(run, DatasetFacts(task="classify", form="one label", rows=9, columns=()))
    with pytest.raises(RequestError, match="has no plan yet") as caught:
        export_run(run, "script")
    assert "None" not in caught.value.found


def test_a_script_is_cut_into_its_parts():
    assert parts_of('"""About."""\n\n# %% One\na = 1\n\n\n# %% Two: more\nb = 2\n') == [
        ("One", "a = 1"),
        ("Two: more", "b = 2"),
    ]
