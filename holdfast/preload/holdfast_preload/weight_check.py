"""Checks now and then whether the weights are NaN, in any training loop, and reports it.

A NaN loss makes every gradient NaN, and the next step every weight, so a few small weights stand for all. They are
checked from the heartbeat, rarely enough to cost half a microsecond per step, before a file is saved, and at exit.
Steps that loss scaling skips do not change the weights and are not noticed. The script decides what to do.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from time import perf_counter
from typing import Any, Callable

from holdfast_preload import event_writer
from holdfast_preload.beat_page import BEAT
from holdfast_preload.wraps import Function

_COST_SECONDS_A_STEP = 0.5e-6
_MAX_STEPS = 10_000  # between two checks, however expensive
_CHECKED = 4  # of the smallest weights
_DEVICES = ("cpu", "cuda", "mps")  # on others (XLA) reading a value may run the whole graph

optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


class WeightCheck:
    """What is known about this process's weights."""

    def __init__(self) -> None:
        self.is_nan = False
        self.last_finite_step = self.next_step = 0
        self._looked_at = 0
        self._is_armed = self._is_off = False
        # of other libraries than torch: called with the devices to read, they return flags like torch's
        self.readers: list[Callable[[tuple[str, ...]], list[bool]]] = []
        self._chosen: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._pending: list[tuple[int, Any, Any]] = []  # step, flag on the host, CUDA event after which it is valid

    def arm(self) -> None:
        """Start checking."""
        if not self._is_armed:
            self._is_armed = True
            BEAT.looks.append(self.check)
            atexit.register(self.check_now, only=("cpu",))  # a device may be why the script died

    def check(self) -> None:
        """Check if it is time to; called from the heartbeat."""
        if BEAT.step < max(self.next_step, 1):
            return
        is_first, begun = not self._looked_at, perf_counter()
        self.check_now()
        if is_first:  # the first check loads kernels, so its time is not typical
            begun = perf_counter()
            self.check_now()
        wait_steps = int((perf_counter() - begun) / _COST_SECONDS_A_STEP)
        self.next_step = BEAT.step + min(wait_steps, _MAX_STEPS)

    def check_now(self, may_wait: bool = False, only: tuple[str, ...] = _DEVICES) -> None:
        """Check, and report changes. CUDA's result is read by a later check, unless `may_wait`."""
        torch: Any = sys.modules.get("torch")
        step = self._looked_at = BEAT.step
        if not step or self._is_off or (optimizers and _is_capturing(torch)):
            return
        try:
            if optimizers:
                with torch.no_grad():
                    for flag in self._flags(torch, only):
                        self._pending.append((step, *_to_host(torch, flag)))
            self._pending += [(step, flag, None) for read in self.readers for flag in read(only)]
            self._read(may_wait)
        except Exception as error:
            self._is_off = True
            event_writer.write_once("hook_failed", where="weights", error=repr(error))

    def _flags(self, torch: Any, only: tuple[str, ...]) -> list[Any]:
        """One flag per device, still on it: whether any of the chosen weights is NaN."""
        by_device: dict[Any, list[Any]] = {}
        for optimizer in list(optimizers):
            for weight in self._choose(optimizer):
                local = weight.to_local() if hasattr(weight, "to_local") else weight  # each rank checks its own shard
                if local.device.type in only:
                    by_device.setdefault(local.device, []).append(torch.isnan(local.detach()).any())
        return [flags[0] if len(flags) == 1 else torch.stack(flags).any() for flags in by_device.values()]

    def _choose(self, optimizer: Any) -> list[Any]:
        """The smallest weights that have had a gradient. Untrained ones may hold anything."""
        kept = [weight for known in self._chosen.get(optimizer, ()) if (weight := known()) is not None]
        if kept:
            return kept
        groups = [weight for group in optimizer.param_groups for weight in group["params"]]
        trained = [one for one in groups if one.grad is not None and one.is_floating_point() and one.numel()]
        chosen = sorted(trained, key=lambda one: one.numel())[:_CHECKED]
        if chosen:
            self._chosen[optimizer] = [weakref.ref(one) for one in chosen]
        return chosen

    def _read(self, may_wait: bool) -> None:
        known: dict[int, bool] = {}
        while self._pending:
            step, flag, done = self._pending[0]
            if done is not None and not done.query():
                if not may_wait:
                    break
                done.synchronize()
            del self._pending[0]
            known[step] = known.get(step, False) or bool(flag)
        for step, is_nan in known.items():
            self._report(step, is_nan)

    def _report(self, step: int, is_nan: bool) -> None:
        if is_nan != self.is_nan:
            self.is_nan = is_nan
            event_writer.write("weights_checked", is_nan=is_nan, step=step, last_finite_step=self.last_finite_step)
        if not is_nan:
            self.last_finite_step = step


WEIGHTS = WeightCheck()


def watch(init: Function) -> Function:
    """Wrap an optimizer's `__init__` so that its weights are checked."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        init(self, *args, **kwargs)
        optimizers.add(self)
        WEIGHTS.arm()

    return __init__


def before_saving(save: Function) -> Function:
    """Wrap a function so that the weights are checked before it."""

    def saved(*args: Any, **kwargs: Any) -> Any:
        WEIGHTS.check_now(may_wait=True)
        return save(*args, **kwargs)

    return saved


def _is_capturing(torch: Any) -> bool:
    """Whether a CUDA graph is being captured: our check would become part of it."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _to_host(torch: Any, flag: Any) -> tuple[Any, Any]:
    """Start copying a flag to the host; return it and the CUDA event after which it is valid."""
    if flag.device.type != "cuda":
        return flag, None
    host = flag.to("cpu", non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return host, done
