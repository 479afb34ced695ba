"""Hooks on torch itself: steps, phases, threads, compiling, hidden accelerators and mixed precision.

The fallback ladder can turn mixed precision written by hand into bfloat16 or float32, or hide the accelerators.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast_preload import event_writer, saved_files, script_settings, weight_check
from holdfast_preload.beat_page import BEAT
from holdfast_preload.wraps import Function, around, given, in_phase, then_evaluate, then_first_step


def after_torch(torch: Any) -> None:
    """Enforce the planned number of threads, and run compiled models uncompiled if the plan says so."""
    threads = script_settings.change("threads")
    if threads:
        around(torch, "set_num_threads", lambda set_threads: lambda asked: set_threads(min(int(asked), int(threads))))
    around(torch, "compile", lambda compile_: _reported(_uncompiled(torch, compile_)))


def after_optimizer(module: Any) -> None:
    """Count the steps of every optimizer, and check its weights."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        event_writer.write_once("not_observed", module=module.__name__, name="register_optimizer_step_post_hook")
        return
    register(BEAT.stepped)
    around(module.Optimizer, "__init__", lambda init: weight_check.watch(then_first_step(init)))


def after_module(module: Any) -> None:
    """Treat `model.eval()` between steps as the start of an evaluation, which the next step ends."""
    around(module.Module, "eval", then_evaluate)


def after_serialization(module: Any) -> None:
    """Phases of saving and loading."""
    around(module, "save", lambda save: weight_check.before_saving(in_phase("save")(save)))
    around(module, "save", saved_files.reporting("f"))
    around(module, "load", in_phase("load"))


def after_convert_frame(module: Any) -> None:
    """The phase of compiling: tracing a function and the backend's work on it."""
    around(module, "_compile", in_phase("compile"))


def _reported(compile_: Function) -> Function:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        event_writer.write_once("part_used", what="compile")
        return compile_(*args, **kwargs)

    return compiled


def _uncompiled(torch: Any, compile_: Function) -> Function:
    """Keep the compiled model's wrapper, whose name is in its checkpoints, but never compile."""
    if script_settings.change("compile") is not False:
        return compile_

    def compiled(*args: Any, **kwargs: Any) -> Any:
        stance = getattr(torch.compiler, "set_stance", None)
        if stance is not None:
            stance("force_eager")
            event_writer.applied("compile", False, "torch.compiler.set_stance('force_eager')")
            return compile_(*args, **kwargs)
        event_writer.applied("compile", False, "torch.compile returns the model unchanged")
        model = args[0] if args else kwargs.get("model")
        return model if model is not None else lambda function: function

    return compiled


def after_mps(module: Any) -> None:
    """Hide Apple's GPU when the plan says CPU. CUDA GPUs are hidden by environment variables."""
    if script_settings.change("device") != "cpu":
        return
    found = bool(module.is_available())
    around(module, "is_available", lambda _: lambda: False)
    around(module, "is_built", lambda _: lambda: False)
    event_writer.applied("device", "cpu", f"MPS {'hidden' if found else 'not available'}; CUDA_VISIBLE_DEVICES empty")


def after_accelerator(module: Any) -> None:
    """Hide the accelerator that torch selects when the plan says CPU."""
    if script_settings.change("device") == "cpu":
        around(module, "is_available", lambda _: lambda: False)
        around(module, "device_count", lambda _: lambda: 0)
        around(module, "current_accelerator", lambda _: lambda *args, **kwargs: None)


def after_autocast(module: Any) -> None:
    """Change mixed precision as the plan says."""
    if script_settings.change("precision") in ("fp32", "bf16"):
        around(module.autocast, "__init__", _wider)


def after_grad_scaler(module: Any) -> None:
    """Turn off loss scaling, which only float16 needs."""
    if script_settings.change("precision") in ("fp32", "bf16"):
        around(module.GradScaler, "__init__", _unscaled)


def _wider(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        named = given(init, (self, *args), kwargs)
        asked = script_settings.change("precision")
        torch = sys.modules["torch"]
        if named.get("enabled", True):
            if asked == "fp32":
                named["enabled"] = False
            elif named.get("dtype") is not torch.bfloat16:
                named["dtype"] = torch.bfloat16
            event_writer.applied("precision", asked, "torch.autocast")
        init(**named)

    return __init__


def _unscaled(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        named = given(init, (self, *args), kwargs)
        named["enabled"] = False
        init(**named)

    return __init__
