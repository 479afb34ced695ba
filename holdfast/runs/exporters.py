"""Writes a run as code that does not need Holdfast: a plain PyTorch script, a notebook, or a container.

Reads: the run's settings and prepared data. Leaves: a folder with the code, the data as arrays and, where it is a
folder of this machine, the model to start from. The code is made of `scripts/`: plain text here, since it is not part
of this program.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import textwrap
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.records import RunPlan
from holdfast.core.runfolder import MANIFEST
from holdfast.core.settings import EngineSettings
from holdfast.runs.state import RunState, read_state
from holdfast.runs.wording import base_model, data_path, headline, run_title

# The settings that an exported script reads, by these names in capitals.
SCRIPT_SETTINGS = (
    *("seed", "epochs", "max_steps", "batch_size", "lr", "weight_decay", "warmup_ratio", "schedule", "max_grad_norm"),
    *("pool_batches", "eval_steps", "keep", "options", "device", "precision", "threads", "micro_tokens"),
)
_TEMPLATES = {"classify": "classify", "causal": "causal", "two-tower": "two_tower"}
_MODEL_FILES = (".json", ".safetensors", ".txt", ".model", ".jinja")


_SETUP = """\
# Missing packages, and the data: upload data.zip when asked, or put the folder next to this notebook.
import importlib.util
import sys
import zipfile
from pathlib import Path

missing = [name for name in {packages} if importlib.util.find_spec(name) is None]
if missing:
    get_ipython().run_line_magic("pip", "install -q " + " ".join(missing))
if not Path("data").is_dir():
    if not Path("data.zip").is_file() and "google.colab" in sys.modules:
        from google.colab import files

        files.upload()
    with zipfile.ZipFile("data.zip") as packed:
        packed.extractall(".")"""
_DOCKERFILE = """\
# {about}
#
#   docker build -t {name} .
#   mkdir -p model
#   docker run --rm --user "$(id -u)" -v "$PWD/model:/app/model" {name}
#   docker run --rm --user "$(id -u)" -v "$PWD/model:/app/model" --gpus all -e DEVICE=cuda {name}
#
# torch's wheels bring CUDA; the host brings the driver. --build-arg PIP_ARGS="..." passes options to pip, such as an
# index with smaller CPU-only builds.
ARG BASE=python:{python}-slim
FROM ${{BASE}}
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 HF_HOME=/tmp/hf HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
WORKDIR /app
COPY requirements.txt ./
RUN pip install ${{PIP_ARGS}} -r requirements.txt
{copies}
COPY train.py ./
# Nothing is loaded by worker processes, so the small shared memory of a container is enough.
CMD ["python", "-X", "faulthandler", "train.py"]
"""
_IGNORE = "model\n**/__pycache__\n"


def export_run(run: Path, kind: str, out: Path | None = None) -> Path:
    """Write a run as a script, a notebook or a container; returns the folder."""
    state = read_state(run)
    settings = _settings_to_export(state)
    folder = out or run / "export" / kind
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(
            f"{folder} already exists",
            found="it is not empty" if folder.is_dir() else "it is a file",
            try_next=("--out FOLDER, with a new name", f"rm -r {folder}"),
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _take_data(Path(settings.prepared), folder / "data")
        model = _take_model(state.records.plan, settings, folder / "base")
        _writer(kind)(folder, script_of(state, model), _about(state))
    except OSError as error:
        raise MachineError(
            f"the export cannot be written: {error.strerror}", found=str(error.filename or folder)
        ) from error
    return folder


def script_of(state: RunState, model: str) -> str:
    """The whole script, with the run's own numbers in it."""
    lines = [f"{name.upper()} = {_literal(getattr(state.settings, name))}" for name in SCRIPT_SETTINGS]
    here = 'HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()'
    places = [here, f"MODEL = {model}", 'DATA, OUT = HERE / "data", HERE / "model"']
    common, task = (_template(name) for name in ("common", _TEMPLATES[state.task]))
    about = "\n".join(textwrap.wrap(_about(state), 110)).replace("\\", "/").replace('"', "'")
    head = f'"""{about}\n\n{_template("about").strip()}\n"""\n\n'
    return head + common.replace("@@SETTINGS@@", "\n".join([*places, *lines])) + "\n\n" + task


def _literal(value: object) -> str:
    """A value as Python writes it, with double quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _writer(kind: str) -> Callable[[Path, str, str], None]:
    return {"script": _write_script, "notebook": write_notebook, "docker": write_container}[kind]


def _write_script(folder: Path, script: str, about: str) -> None:
    (folder / "train.py").write_text(script, encoding="utf-8")
    (folder / "requirements.txt").write_text(requirements(script), encoding="utf-8")


def requirements(script: str) -> str:
    """The packages of the script, with the versions on this machine."""
    from importlib.metadata import PackageNotFoundError, version

    names = ["torch", "transformers", "numpy", "safetensors", *(["peft"] if "from peft" in script else [])]
    lines = []
    for name in names:
        try:
            lines.append(f"{name}=={version(name).partition('+')[0]}")
        except PackageNotFoundError:
            lines.append(name)
    return "\n".join(lines) + "\n"


def _about(state: RunState) -> str:
    data = data_path(state).name or "data"
    return f"Fine-tune {base_model(state)} on {data} ({state.task}), as Holdfast did. {headline(state)}"


def _template(name: str) -> str:
    return files("holdfast.runs").joinpath("scripts", f"{name}.py.txt").read_text(encoding="utf-8")


def _settings_to_export(state: RunState) -> EngineSettings:
    """The settings of a run that can be exported; refuses every other run."""
    if state.is_command:
        raise RequestError(
            "this run supervised your own command, so there is nothing to export",
            found=run_title(state),
        )
    settings = state.settings
    if settings is None:
        raise RequestError(
            f"the run {state.folder} has no plan yet, so there is nothing to export",
            try_next=(f"holdfast resume {state.folder}",),
        )
    if not (Path(settings.prepared) / MANIFEST).is_file():
        raise RequestError(
            "the prepared data of this run is gone",
            found=settings.prepared,
            try_next=(f"holdfast resume {state.folder}",),
        )
    if state.task == "two-tower" and state.manifest and state.manifest.form == "vectors":
        raise RequestError("a run over vectors cannot be exported yet", found="the data contains vectors, not texts")
    return settings


def _take_data(source: Path, target: Path) -> None:
    target.mkdir()
    shown = (".texts.npy", ".text_starts.npy")  # for people; training does not use them
    arrays = [path for path in sorted(source.glob("*.npy")) if not path.name.endswith(shown)]
    for path in (*arrays, source / MANIFEST):
        shutil.copyfile(path, target / path.name)


def _take_model(plan: RunPlan | None, settings: EngineSettings, target: Path) -> str:
    """What MODEL is in the script: a name on the hub, or the folder that is copied."""
    if plan and plan.model.source == "hub":
        return _literal(plan.model.name)
    source = Path(settings.model)
    if not source.is_dir():
        return _literal(settings.model)
    for path in sorted(source.rglob("*")):
        if path.is_file() and path.suffix in _MODEL_FILES:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), place)  # avoids a copy of several gigabytes
            except OSError:
                shutil.copyfile(path, place)
    return 'HERE / "base"'


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: str
    files: list[str]
    bytes: int


def describe_export(folder: Path) -> Exported:
    """List the files of an exported folder."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [str(path.relative_to(folder)) for path in found]
    return Exported(str(folder.resolve()), names, sum(path.stat().st_size for path in found))


def write_notebook(folder: Path, script: str, about: str) -> None:
    """Write `train.ipynb`, and data and model together as `data.zip` for an upload."""
    packages = ["torch", "transformers", "safetensors", *(["peft"] if "from peft" in script else [])]
    cells = [_cell("markdown", _intro(script, about)), _cell("code", _SETUP.format(packages=packages))]
    for title, code in parts_of(script):
        cells += [_cell("markdown", f"## {title}"), _cell("code", code)]
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "colab": {"provenance": []},
            "accelerator": "GPU" if "DEVICE = 'cuda" in script else "None",
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "train.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _pack(folder)


def parts_of(script: str) -> list[tuple[str, str]]:
    """The parts of a script, by its `# %%` lines: title and code."""
    pieces = re.split(r"^# %% ", script, flags=re.MULTILINE)[1:]
    return [(title.strip(), code.strip("\n")) for title, _, code in (piece.partition("\n") for piece in pieces)]


def _intro(script: str, about: str) -> str:
    said = re.match(r'"""(.*?)"""', script, flags=re.DOTALL)
    return "# " + (said[1].strip() if said else about)


def _cell(kind: str, text: str) -> dict[str, Any]:
    lines = text.splitlines(keepends=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}, "source": lines}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _pack(folder: Path) -> None:
    """One file to upload: the data, and the model if it is a folder on this machine."""
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("data", "base"):
            for path in sorted((folder / name).rglob("*")):
                packed.write(path, path.relative_to(folder))
    for name in ("data", "base"):
        shutil.rmtree(folder / name, ignore_errors=True)


def write_container(folder: Path, script: str, about: str) -> None:
    """Write Dockerfile, script and requirements; data and model are next to them."""
    copies = "\n".join(f"COPY {name} ./{name}" for name in ("data", "base") if (folder / name).is_dir())
    filled = _DOCKERFILE.format(
        about="\n# ".join(textwrap.wrap(" ".join(about.split()), 110)),
        name="fine-tune",
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        copies=copies,
    )
    (folder / "Dockerfile").write_text(filled, encoding="utf-8")
    (folder / ".dockerignore").write_text(_IGNORE, encoding="utf-8")
    (folder / "train.py").write_text(script, encoding="utf-8")
    (folder / "requirements.txt").write_text(requirements(script), encoding="utf-8")
