"""Writes a script as a notebook that Colab and Jupyter open: a cell for each of its parts."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

_SETUP = """\
# Packages that are not here yet, and the data: upload data.zip when asked, or put the folder beside this notebook.
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
    """One file to upload: the data, and the model where it is a folder of this machine."""
    import zipfile

    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("data", "base"):
            for path in sorted((folder / name).rglob("*")):
                packed.write(path, path.relative_to(folder))
    for name in ("data", "base"):
        shutil.rmtree(folder / name, ignore_errors=True)
