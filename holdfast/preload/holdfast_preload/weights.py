"""Looks now and then whether the weights are still numbers, in whatever loop, and tells when they are not.

A loss that is NaN makes every gradient NaN, and the next step every weight: so a few small ones say it of all. They are
looked at from the beat, rarely enough to cost half a microsecond a step, before a file is saved, and at the end. Steps
that loss scaling skips leave the weights as they were and are not seen here. Nothing is ended: the script decides.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from time import perf_counter
from typing import Any

from holdfast_preload import events
from holdfast_preload.beat import BEAT
from holdfast_preload.wraps import Function

_COST_SECONDS_A_STEP = 0.5e-6
_MOST_STEPS = 10_000  # between two looks, however dear one is
_SEEN = 4  # of the smallest weights
_DEVICES = ("cpu", "cuda", "mps")  # on others (xla) a question may make the whole graph run

optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


class Weights:
    """What is known of this process's weights."""

    def __init__(self) -> None:
        self.is_nan = False
        self.last_finite_step = self.next_step = 0
        self._looked_at = 0
        self._is_armed = self._is_off = False
        self._chosen: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._pending: list[tuple[int, Any, Any]] = []  # step, flag on the host, event after which it holds

    def arm(self) -> None:
        """Look from now on."""
        if not self._is_armed:
            self._is_armed = True
            BEAT.looks.append(self.look)
            atexit.register(self.look_now, only=("cpu",))  # a device may be what the script died of

    def look(self) -> None:
        """Look if it is time to; called from the beat."""
        if BEAT.step < max(self.next_step, 1):
            return
        is_first, begun = not self._looked_at, perf_counter()
        self.look_now()
        if is_first:  # it loaded kernels, and says nothing about the cost
            begun = perf_counter()
            self.look_now()
        wait_steps = int((perf_counter() - begun) / _COST_SECONDS_A_STEP)
        self.next_step = BEAT.step + min(wait_steps, _MOST_STEPS)

    def look_now(self, may_wait: bool = False, only: tuple[str, ...] = _DEVICES) -> None:
        """Look, and tell when it is news. A CUDA device's answer comes with a later look, unless it is waited for."""
        torch: Any = sys.modules.get("torch")
        step = self._looked_at = BEAT.step
        if torch is None or not step or self._is_off or _is_capturing(torch):
            return
        try:
            with torch.no_grad():
                for flag in self._flags(torch, only):
                    self._pending.append((step, *_to_host(torch, flag)))
                self._read(may_wait)
        except Exception as error:
            self._is_off = True
            events.write_once("preload failed", where="weights", error=repr(error))

    def _flags(self, torch: Any, only: tuple[str, ...]) -> list[Any]:
        """For each device one truth, still on it: is any of the chosen weights NaN."""
        by_device: dict[Any, list[Any]] = {}
        for optimizer in list(optimizers):
            for weight in self._choose(optimizer):
                local = weight.to_local() if hasattr(weight, "to_local") else weight  # a sharded one answers for itself
                if local.device.type in only:
                    by_device.setdefault(local.device, []).append(torch.isnan(local.detach()).any())
        return [flags[0] if len(flags) == 1 else torch.stack(flags).any() for flags in by_device.values()]

    def _choose(self, optimizer: Any) -> list[Any]:
        """The smallest weights that have a gradient; without one, those chosen before. Others may hold anything."""
        kept = [weight for known in self._chosen.get(optimizer, ()) if (weight := known()) is not None]
        if kept:
            return kept
        groups = [weight for group in optimizer.param_groups for weight in group["params"]]
        trained = [one for one in groups if one.grad is not None and one.is_floating_point() and one.numel()]
        chosen = sorted(trained, key=lambda one: one.numel())[:_SEEN]
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
            self._tell(step, is_nan)

    def _tell(self, step: int, is_nan: bool) -> None:
        if is_nan != self.is_nan:
            self.is_nan = is_nan
            events.write("weights", is_nan=is_nan, step=step, last_finite_step=self.last_finite_step)
        if not is_nan:
            self.last_finite_step = step


WEIGHTS = Weights()


def watch(init: Function) -> Function:
    """Make an optimizer's `__init__` that is the original, and has its weights watched."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        init(self, *args, **kwargs)
        optimizers.add(self)
        WEIGHTS.arm()

    return __init__


def before_saving(save: Function) -> Function:
    """Make a function that is the original, with a look at the weights before it."""

    def saved(*args: Any, **kwargs: Any) -> Any:
        WEIGHTS.look_now(may_wait=True)
        return save(*args, **kwargs)

    return saved


def _is_capturing(torch: Any) -> bool:
    """True while a CUDA graph is recorded: what we asked would become part of it."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _to_host(torch: Any, flag: Any) -> tuple[Any, Any]:
    """A flag on its way to the host, and what says that it has arrived; on CUDA without holding up the device."""
    if flag.device.type != "cuda":
        return flag, None
    host = flag.to("cpu", non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return host, done
