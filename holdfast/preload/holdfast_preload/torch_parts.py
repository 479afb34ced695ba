"""torch itself: steps by its global optimizer hook, phases of saving, loading, compiling and evaluating, threads,
compile off.
"""

from __future__ import annotations

from typing import Any

from holdfast_preload import events, settings, weights
from holdfast_preload.beat import BEAT, EVALUATE, FIRST_STEP
from holdfast_preload.wraps import Function, around, in_phase


def after_torch(torch: Any) -> None:
    """Keep the asked number of threads against the script's own wish, and run compiled models as they are written."""
    threads = settings.change("threads")
    if threads:
        around(torch, "set_num_threads", lambda set_threads: lambda asked: set_threads(min(int(asked), int(threads))))
    around(torch, "compile", lambda compile_: _told(_uncompiled(torch, compile_)))


def after_optimizer(module: Any) -> None:
    """Count the steps of every optimizer, and look after its weights."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        events.write_once("cannot watch", module=module.__name__, name="register_optimizer_step_post_hook")
        return
    register(BEAT.stepped)
    around(module.Optimizer, "__init__", lambda init: weights.watch(_then_first_step(init)))


def after_module(module: Any) -> None:
    """Take `model.eval()` between steps for the start of an evaluation; the next step ends it."""
    around(module.Module, "eval", _then_evaluate)


def after_serialization(module: Any) -> None:
    """Saving and loading."""
    around(module, "save", lambda save: weights.before_saving(in_phase("save")(save)))
    around(module, "load", in_phase("load"))


def after_convert_frame(module: Any) -> None:
    """Compiling: the tracing of a function and the backend's work on it."""
    around(module, "_compile", in_phase("compile"))


def _then_first_step(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        init(self, *args, **kwargs)
        if not BEAT.step:
            BEAT.enter(FIRST_STEP)

    return __init__


def _then_evaluate(to_eval: Function) -> Function:
    def eval_(self: Any) -> Any:
        if BEAT.step:
            BEAT.enter(EVALUATE)
        return to_eval(self)

    return eval_


def _told(compile_: Function) -> Function:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        events.write_once("uses", what="compile")
        return compile_(*args, **kwargs)

    return compiled


def _uncompiled(torch: Any, compile_: Function) -> Function:
    """Keep the compiled model's wrapper, whose name is in its checkpoints, but never compile."""
    if settings.change("compile") is not False:
        return compile_

    def compiled(*args: Any, **kwargs: Any) -> Any:
        stance = getattr(torch.compiler, "set_stance", None)
        if stance is not None:
            stance("force_eager")
            events.applied("compile", False, "torch.compiler.set_stance('force_eager')")
            return compile_(*args, **kwargs)
        events.applied("compile", False, "torch.compile gives the model back as it is")
        model = args[0] if args else kwargs.get("model")
        return model if model is not None else lambda function: function

    return compiled
