"""Changes of the plan that are environment variables: set before any library loads, and again as they load."""

from __future__ import annotations

import os
import sys

from holdfast_preload import event_writer, script_settings

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
    """Set the variables this attempt asks for, and make output line-buffered."""
    for name, value in variables().items():
        os.environ[name] = value
    for change in ("threads", "offline"):
        if script_settings.change(change):
            event_writer.applied(change, script_settings.change(change), "environment")
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)  # so that a killed script does not lose its last lines


def apply_again() -> None:
    """Set them again, in case the script has changed them."""
    for name, value in variables().items():
        if os.environ.get(name) != value:
            os.environ[name] = value
            event_writer.write_once(
                "change_applied", change=name, value=value, how="set again: the script had changed it"
            )


def variables() -> dict[str, str]:
    """Every variable the settings ask for."""
    asked = {str(name): str(value) for name, value in script_settings.get("environment", {}).items()}
    changes = script_settings.get("changes", {})
    asked.update({name: str(value) for name, value in changes.items() if name.isupper()})
    if changes.get("threads"):
        asked.update(dict.fromkeys(_THREADS, str(changes["threads"])))
    if changes.get("offline"):
        asked.update(dict.fromkeys(_OFFLINE, "1"))
    if changes.get("device") == "cpu":
        asked.update(_HIDE_CARDS)
    return asked
