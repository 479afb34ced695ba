"""Interpreters with the libraries that Holdfast is compared with, each in its own environment.

`HOLDFAST_PEER_PYTHON` names an interpreter that already has them; otherwise one is created in the user's cache folder.
"""

import os
import subprocess
import sys
from pathlib import Path

import platformdirs

_TORCH = "torch==2.13.0"
_TRL = ("trl==1.16.0", "transformers==5.22.2", "peft", "accelerate", "datasets")


def trl_python() -> str:
    """The interpreter that has TRL."""
    return peer_python("trl", *_TRL, "msgspec", "psutil")


def peer_python(name: str, *packages: str) -> str:
    """The interpreter that has these packages; created at the first call, which takes minutes."""
    if given := os.environ.get("HOLDFAST_PEER_PYTHON"):
        return given
    folder = Path(platformdirs.user_cache_dir("holdfast")) / "peers" / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.is_file():
        print(f"setting up {name} in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        for wanted in ((_TORCH, "numpy"), packages):  # torch first, so that nothing installs another build
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *wanted], check=True)
        ready.touch()
    return str(python)
