"""Changes of the plan that are environment variables: set before any library reads them, and again as they load."""

from __future__ import annotations

import os
import sys

from holdfast_preload import events, settings

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_HIDE_CARDS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "DISABLE_MPS": "1"}


def apply() -> None:
    """Set the variables this attempt asks for, and show lines of output as they are printed."""
    for name, value in variables().items():
        os.environ[name] = value
    for change in ("threads", "offline"):
        if settings.change(change):
            events.applied(change, settings.change(change), "environment")
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)  # a killed script must not take its last lines along


def apply_again() -> None:
    """Set them once more, for a script that changed them on the way."""
    for name, value in variables().items():
        if os.environ.get(name) != value:
            os.environ[name] = value
            events.write_once("applied", change=name, value=value, how="set again after the script changed it")


def variables() -> dict[str, str]:
    """Every variable the settings ask for."""
    asked = {str(name): str(value) for name, value in settings.get("environment", {}).items()}
    changes = settings.get("changes", {})
    asked.update({name: str(value) for name, value in changes.items() if name.isupper()})
    if changes.get("threads"):
        asked.update(dict.fromkeys(_THREADS, str(changes["threads"])))
    if changes.get("offline"):
        asked.update(dict.fromkeys(_OFFLINE, "1"))
    if changes.get("device") == "cpu":
        asked.update(_HIDE_CARDS)
    return asked
