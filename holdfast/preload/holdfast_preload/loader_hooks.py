"""Hooks on torch's DataLoader: a beat for every batch, stacks of its workers, changes to workers and start method."""

from __future__ import annotations

import sys
import threading
from typing import Any

from holdfast_preload import event_writer, loader_state, script_settings, stack_dumps
from holdfast_preload.beat_page import BEAT, BEGIN_EPOCH, STEP
from holdfast_preload.wraps import Function, around, given

_ONLY_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")


def after_dataloader(module: Any) -> None:
    """Beat for every batch, and change how batches are loaded."""
    around(module._BaseDataLoaderIter, "__next__", _beating)
    around(module.DataLoader, "__iter__", _beginning)
    around(module.DataLoader, "__init__", _changed)


def after_signal_handling(module: Any) -> None:
    """Run before torch's own handlers of fatal signals in a worker, which name the signal but show no stack."""
    around(module, "_set_worker_signal_handlers", _then_stacks)


def changed_loader(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a DataLoader with the plan's changes; without workers, worker options are dropped."""
    workers, method = script_settings.change("loader_workers"), script_settings.change("start_method")
    prefetch = script_settings.change("prefetch_batches")
    asked = int(named.get("num_workers") or 0)
    if asked:
        event_writer.write_once("part_used", what="loader", workers=asked)
    if workers is not None and asked > int(workers):
        named["num_workers"] = int(workers)
        event_writer.applied("loader_workers", int(workers), f"DataLoader(num_workers={asked})")
    if asked and not named["num_workers"]:
        return {name: value for name, value in named.items() if name not in _ONLY_WITH_WORKERS}
    if asked and method is not None:
        named["multiprocessing_context"] = method
        event_writer.applied("start_method", method, "DataLoader(multiprocessing_context=...)")
    if asked and prefetch is not None:
        named["prefetch_factor"] = int(prefetch)
        event_writer.applied("prefetch_batches", int(prefetch), "DataLoader(prefetch_factor=...)")
    return named


def _changed(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        try:
            named = changed_loader(given(init, (self, *args), kwargs))
        except Exception as error:
            event_writer.write_once("hook_failed", where="DataLoader", error=repr(error))
            init(self, *args, **kwargs)
        else:
            init(**named)

    return __init__


def _beating(next_: Function) -> Function:
    def __next__(self: Any) -> Any:  # noqa: N807  (takes the place of a method)
        if loader_state.is_recorded:
            loader_state.first_batch(self)
        batch = next_(self)
        if threading.get_ident() == BEAT.main_thread:
            if BEAT.phase == BEGIN_EPOCH:
                BEAT.phase = STEP
            BEAT.beat()
        return batch

    return __next__


def _beginning(iter_: Function) -> Function:
    def __iter__(self: Any) -> Any:  # noqa: N807  (takes the place of a method)
        if BEAT.phase == STEP:
            BEAT.enter(BEGIN_EPOCH)
        return loader_state.made(self, iter_) if loader_state.is_recorded else iter_(self)

    return __iter__


def _then_stacks(set_handlers: Function) -> Function:
    def set_worker_signal_handlers() -> None:
        stack_dumps.release_signals()
        set_handlers()
        stack_dumps.retake_signals()
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, stack_dumps.forget_if_empty, exitpriority=0)

    return set_worker_signal_handlers
