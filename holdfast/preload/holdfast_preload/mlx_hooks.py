"""Hooks on MLX itself: steps, phases, NaN weights, the device and compiling.

MLX loops compile the function that updates the weights, so `Optimizer.update` runs only while MLX traces that function,
not at each step. We therefore also watch `mx.compile`, and count a call of a compiled function as a step if tracing it
updated an optimizer. MLX is lazy: a step counts when the next `mx.eval` has computed it, or when the next step begins.
"""

from __future__ import annotations

import atexit
import functools
import sys
import weakref
from typing import Any, Callable

from holdfast_preload import event_writer, script_settings, weight_check
from holdfast_preload.beat_page import BEAT
from holdfast_preload.wraps import Function, around, in_phase, then_evaluate, then_first_step

_CHECKED = 4  # of the smallest weights


class UpdateCount:
    """Counts the updates of all optimizers of this process."""

    def __init__(self) -> None:
        self.is_paused = False  # a training that reports its own steps is running
        self.model: Callable[[], Any] = lambda: None  # the model updated last
        self._traced: list[int] = []  # updates in each function that is being traced, the innermost last
        self._is_updating = False
        self._waiting = 0  # updates that are not known to be computed yet

    def updating(self, update: Function) -> Function:
        """Wrap a method that updates weights. An update within another is the same update."""

        def updated(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_updating:
                return update(optimizer, *args, **kwargs)
            self._is_updating = True
            try:
                result = update(optimizer, *args, **kwargs)
            finally:
                self._is_updating = False
            self._watch_weights(args)
            self.add(1)
            return result

        return updated

    def trace(self, function: Function, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Call the function; return its result and how often it updated an optimizer."""
        self._traced.append(0)
        try:
            result = function(*args, **kwargs)
        finally:
            updates = self._traced.pop()
        return result, updates

    def add(self, updates: int) -> None:
        """Note updates that were made, or that will be made at each call of the function being traced."""
        if self._traced:
            self._traced[-1] += updates
        elif not self.is_paused:
            self.commit()
            self._waiting = updates

    def commit(self) -> None:
        """Report the updates noted so far as steps."""
        while self._waiting:
            self._waiting -= 1
            BEAT.stepped()

    def _watch_weights(self, args: tuple[Any, ...]) -> None:
        model = next((arg for arg in args if hasattr(arg, "trainable_parameters")), None)
        if model is not None:
            self.model = weakref.ref(model)
            weight_check.WEIGHTS.arm()


STEPS = UpdateCount()


def after_core(mx: Any) -> None:
    """Watch compiling, evaluation and files; use the CPU, or do not compile, if the plan says so."""
    around(mx, "compile", _watched)
    around(mx, "eval", _then_commit)
    for name in ("save", "savez", "savez_compressed", "save_safetensors", "save_gguf"):
        around(mx, name, lambda save: weight_check.before_saving(in_phase("save")(save)))
    around(mx, "load", in_phase("load"))
    weight_check.WEIGHTS.readers.append(_nan_flags)
    atexit.register(STEPS.commit)
    if script_settings.change("device") == "cpu":
        mx.set_default_device(mx.cpu)
        around(mx, "set_default_device", lambda set_default: lambda device: set_default(mx.cpu))
        event_writer.applied("device", "cpu", "mlx.core.set_default_device(mlx.core.cpu)")
    if script_settings.change("compile") is False:
        mx.disable_compile()
        around(mx, "enable_compile", lambda enable: lambda: None)
        event_writer.applied("compile", False, "mlx.core.disable_compile()")


def after_optimizers(module: Any) -> None:
    """Count the updates of every optimizer."""
    around(module.Optimizer, "__init__", then_first_step)
    around(module.Optimizer, "update", STEPS.updating)
    around(module.Optimizer, "apply_gradients", STEPS.updating)
    around(module.MultiOptimizer, "apply_gradients", STEPS.updating)


def after_module(module: Any) -> None:
    """Treat `model.eval()` between steps as the start of an evaluation, which the next step ends."""
    around(module.Module, "eval", then_evaluate)


def are_finite(weights: Any) -> bool:
    """Sum the weights of a tree: one NaN or infinity shows in the sum."""
    mx = sys.modules["mlx.core"]
    sums = [mx.sum(weight.astype(mx.float32)) for weight in _leaves(weights) if _is_floating(mx, weight)]
    return not sums or bool(mx.isfinite(mx.stack(sums).sum()).item())


def _watched(compile_: Function) -> Function:
    def compiled(fun: Function, *args: Any, **kwargs: Any) -> Function:
        known: dict[Any, int] = {}  # kind of call -> updates
        last_traced = [-1]

        @functools.wraps(fun)
        def traced(*call_args: Any, **call_kwargs: Any) -> Any:
            result, last_traced[0] = STEPS.trace(fun, call_args, call_kwargs)
            return result

        made = compile_(traced, *args, **kwargs)

        @functools.wraps(fun)
        def called(*call_args: Any, **call_kwargs: Any) -> Any:
            last_traced[0] = -1
            result = made(*call_args, **call_kwargs)
            updates = last_traced[0]
            if updates >= 0 or known:
                updates = _updates(known, updates, call_args, call_kwargs)
            if updates > 0:
                event_writer.write_once("part_used", what="compile")
                STEPS.add(updates)
            return result

        return called

    return compiled


def _updates(known: dict[Any, int], updates: int, args: Any, kwargs: Any) -> int:
    """How often this call updated an optimizer, from its own trace (-1: none) or that of an earlier call like it."""
    if updates == 0 and not known:
        return 0  # most compiled functions never update: nothing is remembered of them
    kind = tuple(_kind(arg) for arg in (*args, *(kwargs[name] for name in sorted(kwargs))))
    if updates >= 0:
        known[kind] = updates
    return known.get(kind, 0)


def _kind(arg: Any) -> Any:
    """What MLX traces again for: another constant, or another type."""
    return arg if arg is None or isinstance(arg, (bool, int, float, str)) else type(arg)


def _then_commit(evaluate: Function) -> Function:
    def evaluated(*args: Any) -> None:
        evaluate(*args)
        STEPS.commit()

    return evaluated


def _nan_flags(only: tuple[str, ...]) -> list[bool]:
    """For `weight_check`: whether a few small weights of the model are NaN."""
    mx, model = sys.modules["mlx.core"], STEPS.model()
    if model is None or (mx.default_device() == mx.gpu and "mps" not in only):
        return []
    weights = [one for one in _leaves(model.trainable_parameters()) if _is_floating(mx, one) and one.size]
    smallest = sorted(weights, key=lambda one: int(one.size))[:_CHECKED]
    return [bool(mx.stack([mx.isnan(one).any() for one in smallest]).any().item())] if smallest else []


def _leaves(tree: Any) -> list[Any]:
    return [leaf for _, leaf in sys.modules["mlx.utils"].tree_flatten(tree)]


def _is_floating(mx: Any, weight: Any) -> bool:
    return bool(mx.issubdtype(weight.dtype, mx.floating))
