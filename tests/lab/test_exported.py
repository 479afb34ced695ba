"""Exported scripts and notebooks are run as a user would, and their weights compared with the run's own.

They agree to rounding, not bit for bit: the script pads texts that the engine packs, so sums are taken in another
order. Seen: differences of at most 5e-7 after 24 steps at a learning rate of 1e-3, dropout and mining included.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from safetensors.torch import load_file

from holdfast.core.runfolder import model_folder
from holdfast.runs.exporters import export_run
from tests.tiny import tiny_attempt, tiny_bert, tiny_instructions, tiny_llama, tiny_prepared, tiny_questions

pytestmark = pytest.mark.lab

TIGHT = 1e-5


def trained(run: Path, model: Path, prepared: Path, **settings: object) -> Path:
    attempt = tiny_attempt(run, model, prepared, epochs=2, **settings)
    ended = subprocess.run([sys.executable, "-m", "holdfast.engine", str(attempt)], capture_output=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return run


def furthest(one: Path, other: Path) -> float:
    """The largest difference between any two weights of two models."""
    left, right = load_file(one), load_file(other)
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def run_script(folder: Path) -> Path:
    ended = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert b"holdfast" not in (folder / "train.py").read_bytes().split(b'"""', 2)[2]
    return folder / "model" / "model.safetensors"


LORA = {"options": {"lora": {"r": 4, "lora_dropout": 0.1}}, "keep": "last"}
MINED = {"options": {"mining": {"from_epoch": 0}}, "micro_tokens": 200}


@pytest.mark.parametrize(
    ("task", "make_model", "make_data", "settings"),
    [
        pytest.param(
            *("classify", tiny_bert, tiny_prepared, {"micro_tokens": 90, "pool_batches": 2, "eval_steps": 7}),
            id="classify",
        ),
        pytest.param(
            "causal", tiny_llama, tiny_instructions, {"schedule": "cosine"}, id="causal", marks=pytest.mark.full
        ),
        pytest.param("causal", tiny_llama, tiny_instructions, LORA, id="lora", marks=pytest.mark.full),
        pytest.param("two-tower", tiny_bert, tiny_questions, MINED, id="two-tower", marks=pytest.mark.full),
    ],
)
def test_exported_script_trains_to_the_same_weights(tmp_path, task, make_model, make_data, settings):
    run = trained(tmp_path / "run", make_model(tmp_path / "m"), make_data(tmp_path / "d"), task=task, **settings)
    made = run_script(export_run(run, "script", tmp_path / "out"))
    assert furthest(made, model_folder(run) / "model.safetensors") < TIGHT


@pytest.mark.full
def test_exported_notebook_trains_to_the_same_weights(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    run = trained(tmp_path / "run", tiny_bert(tmp_path / "m"), tiny_prepared(tmp_path / "d"))
    folder = export_run(run, "notebook", tmp_path / "out")
    notebook = nbformat.read(folder / "train.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert zipfile.ZipFile(folder / "data.zip").testzip() is None
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    made = folder / "model" / "model.safetensors"
    assert furthest(made, model_folder(run) / "model.safetensors") < TIGHT
    said = json.dumps([cell.get("outputs") for cell in notebook.cells])
    assert "accuracy" in said
