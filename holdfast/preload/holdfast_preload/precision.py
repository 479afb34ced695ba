"""Wider numbers for scripts that use torch's mixed precision by hand: autocast off or in bfloat16, no loss scaling."""

from __future__ import annotations

import sys
from typing import Any

from holdfast_preload import events, settings
from holdfast_preload.wraps import Function, around, given


def after_autocast(module: Any) -> None:
    """Mixed precision as a context."""
    if settings.change("precision") in ("fp32", "bf16"):
        around(module.autocast, "__init__", _wider)


def after_grad_scaler(module: Any) -> None:
    """Loss scaling, which only float16 needs."""
    if settings.change("precision") in ("fp32", "bf16"):
        around(module.GradScaler, "__init__", _unscaled)


def _wider(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        named = given(init, (self, *args), kwargs)
        asked = settings.change("precision")
        torch = sys.modules["torch"]
        if named.get("enabled", True):
            if asked == "fp32":
                named["enabled"] = False
            elif named.get("dtype") is not torch.bfloat16:
                named["dtype"] = torch.bfloat16
            events.applied("precision", asked, "torch.autocast")
        init(**named)

    return __init__


def _unscaled(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        named = given(init, (self, *args), kwargs)
        named["enabled"] = False
        init(**named)

    return __init__
