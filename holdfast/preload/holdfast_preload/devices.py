"""Accelerators made to look absent when the plan says CPU. CUDA cards are hidden by their environment variables."""

from __future__ import annotations

from typing import Any

from holdfast_preload import events, settings
from holdfast_preload.wraps import around


def after_mps(module: Any) -> None:
    """Apple's GPU."""
    if settings.change("device") != "cpu":
        return
    found = bool(module.is_available())
    around(module, "is_available", lambda _: lambda: False)
    around(module, "is_built", lambda _: lambda: False)
    events.applied("device", "cpu", f"MPS {'hidden' if found else 'was not there'}; CUDA_VISIBLE_DEVICES empty")


def after_accelerator(module: Any) -> None:
    """The accelerator torch names by itself."""
    if settings.change("device") == "cpu":
        around(module, "is_available", lambda _: lambda: False)
        around(module, "device_count", lambda _: lambda: 0)
        around(module, "current_accelerator", lambda _: lambda *args, **kwargs: None)
