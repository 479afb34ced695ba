"""Lightning's Trainer: `ckpt_path` of the newest whole checkpoint, checkpoints by the clock, device, precision, NaN.

Ours go to `checkpoints/fit-N/` of the run folder. Beside every checkpoint, the script's own too, lies where the data
loaders stood, which Lightning does not keep; so a run that continues ends with the same weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import time
from typing import Any

from holdfast_preload import ending, events, history, order, settings, stopping
from holdfast_preload.beat import BEAT, FIRST_STEP, NUMBERS
from holdfast_preload.cadence import Cadence
from holdfast_preload.checkpoints import why_broken_file
from holdfast_preload.finite import Numbers
from holdfast_preload.wraps import Function, around, given, in_phase

_KEEP = 2
_LOOK_SECONDS = 1.0  # a look at the loss makes the CPU wait for the device
_KEYWORDS = ("last", "best", "hpc", "registry")


class Fit:
    """One call of `fit()`."""

    count = 0
    steps_before = 0

    def __init__(self, trainer: Any):
        Fit.count += 1
        self.number = Fit.count
        self.trainer = trainer
        self.folder = os.path.join(settings.run_folder(), "checkpoints", f"fit-{self.number}")
        self.numbers = Numbers(
            self.number, is_scaled="16" in str(trainer.precision) and "bf" not in str(trainer.precision)
        )
        self.cadence = Cadence()
        self.next_look = 0.0
        self.ours: list[str] = []
        self.resumed_from = ""

    def begin(self) -> None:
        """The loop is about to take its first step."""
        stopping.arm()
        step = int(self.trainer.global_step)
        total = self.trainer.estimated_stepping_batches
        BEAT.step = self.steps_before + step
        BEAT.steps = self.steps_before + int(total) if total != float("inf") and total > 0 else 0
        BEAT.enter(NUMBERS["resume"] if self.resumed_from else FIRST_STEP)
        if self.resumed_from:
            self.numbers.last_finite_step = step
            events.write("resumed", checkpoint=self.resumed_from, step=step, train=self.number)
        elif settings.get("resume") and self.number == 1:
            events.write("from the beginning", train=self.number)

    def after_batch(self, outputs: Any, batch_at: int) -> None:
        """Look at the loss and the clock after a batch; only between steps, and not at the end of an epoch."""
        trainer = self.trainer
        step = int(trainer.global_step)
        BEAT.step = self.steps_before + step
        many = int(trainer.world_size) > 1
        is_due = self.cadence.is_due(step, self._broadcast if many else None)
        if not many and getattr(trainer, "received_sigterm", False):  # Lightning takes the signal itself
            is_due = self.cadence.must_stop = True
        if is_due or time.monotonic() > self.next_look:
            self.next_look = time.monotonic() + _LOOK_SECONDS
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                self.numbers.look({"loss": float(loss)}, step, tell=bool(trainer.is_global_zero))
        if (
            not is_due
            or trainer.fit_loop._should_accumulate()
            or trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        ):
            return
        self.save(step)

    def save(self, step: int) -> None:
        """Make a checkpoint of ours, and stop when asked; a failed save is an event and no more."""
        path = os.path.join(self.folder, f"step-{step}.ckpt")
        if step != self.cadence.last_step and settings.get("may_save", True):
            try:
                self.trainer.save_checkpoint(path, False)  # with optimizer and loops
                self._keep_few(path)
            except Exception as error:
                if self.numbers.has_ended:
                    raise
                events.write("save failed", step=step, error=repr(error), train=self.number)
                self.cadence.last_end = time.monotonic()
        if self.cadence.must_stop:
            events.write("stopped", step=step, train=self.number, saved=self.cadence.last_step == step)
            ending.leave(143)

    def interrupted(self) -> None:
        """Save when Lightning stops by itself, having received SIGTERM between two batches."""
        step = int(self.trainer.global_step)
        if not self.cadence.must_stop:
            if not self.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                self.save(step)
            events.write("stopped", step=step, train=self.number, saved=self.cadence.last_step == step)

    def watched(self, save: Function, named: dict[str, Any]) -> Any:
        """Save as Lightning does, but never bad numbers, and tell of it before and after."""
        step, path = int(self.trainer.global_step), os.path.abspath(str(named["filepath"]))
        tells = bool(self.trainer.is_global_zero) and not named.get("weights_only")
        self.numbers.look_at_weights(self.trainer.lightning_module, step)
        if tells:
            order.write(self.order_file(path), [order.where(loader) for loader in self.loaders()])
            events.write("saving", path=path, step=step, train=self.number)
        start = time.monotonic()
        result = in_phase("save")(save)(**named)
        seconds = time.monotonic() - start
        if not named.get("weights_only"):  # from weights alone nothing can go on
            self.cadence.saved(step, seconds)
        if tells:
            events.write("saved", path=path, step=step, train=self.number, seconds=round(seconds, 3))
        return result

    def loaders(self) -> list[Any]:
        """The training loaders in Lightning's order."""
        combined = getattr(self.trainer.fit_loop, "_combined_loader", None)
        return [loader for loader in getattr(combined, "flattened", []) if hasattr(loader, "__dict__")]

    def order_file(self, path: str) -> str:
        """Where we keep how the loaders stood at a checkpoint."""
        return os.path.join(self.folder, "order", hashlib.sha1(path.encode()).hexdigest()[:16])

    def go_back(self) -> None:
        """Have the loaders continue where they stood."""
        states = order.read(self.order_file(self.resumed_from))
        if any(states):
            order.pending.append((self._place, states))

    def _place(self, loader: Any) -> int:
        return next((at for at, known in enumerate(self.loaders()) if known is loader), -1)

    def _keep_few(self, path: str) -> None:
        if self.trainer.is_global_zero:
            self.ours.append(path)
            for old in self.ours[:-_KEEP]:
                for file in (old, self.order_file(old)):
                    with contextlib.suppress(OSError):
                        os.remove(file)
            del self.ours[:-_KEEP]

    def _broadcast(self, values: list[int]) -> list[int]:
        return [int(value) for value in self.trainer.strategy.broadcast(values, src=0)]


def after_trainer(module: Any) -> None:
    """Watch every Trainer."""
    order.is_recorded = True
    trainer = module.Trainer
    around(trainer, "__init__", lambda init: _with_callback(init, _callback(module.Callback)))
    around(trainer, "fit", _fitting)
    around(trainer, "save_checkpoint", _saving)


def after_evaluation_loop(module: Any) -> None:
    """Evaluating, inside a fit too."""
    around(module._EvaluationLoop, "run", in_phase("evaluate"))


def choose_checkpoint(asked: Any, number: int) -> Any:
    """What to hand to `fit(ckpt_path=...)`: the script's own wish unless it is broken or behind us."""
    ours = ""
    if settings.get("resume"):
        for saved in history.saved_by(number, history.earlier_events(settings.attempt)):
            reason = why_broken_file(saved.path) if os.path.isfile(saved.path) else ""
            if reason:
                history.tell_skipped(saved.path, reason)
            elif os.path.exists(saved.path):
                ours = saved.path
                break
    if asked is None or ours or str(asked).startswith(_KEYWORDS) or not os.path.isfile(str(asked)):
        return ours or asked
    reason = why_broken_file(str(asked))
    if reason:
        history.tell_skipped(str(asked), reason)
        events.write("starting over", because="no whole checkpoint", folder=os.path.dirname(str(asked)))
    return None if reason else asked


def _fitting(fit: Function) -> Function:
    def fitted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            named = _choose(self, given(fit, (self, *args), kwargs), fit)
        except Exception as error:
            events.write("preload failed", where="Trainer.fit", error=repr(error))
            return fit(self, *args, **kwargs)
        try:
            result = fit(**named)
        except SystemExit as end:
            if end.code or not getattr(self, "received_sigterm", False):
                raise
            ending.leave(143)  # Lightning leaves with 0, as if it had finished
        finally:
            stopping.disarm()
        mine = _mine(self)
        if mine is not None:
            events.write("trained", train=mine.number, step=int(self.global_step))
            Fit.steps_before += int(self.global_step)
        return result

    return fitted


def _choose(trainer: Any, named: dict[str, Any], fit: Function) -> dict[str, Any]:
    mine = trainer._holdfast = Fit(trainer)
    asked = named.get("ckpt_path")
    chosen = choose_checkpoint(asked, mine.number)
    root = str(getattr(trainer, "default_root_dir", ""))
    events.write("uses", what="lightning", output_dir=root, train=mine.number, can_stop=True)
    if int(settings.get("micro_batch_factor", 1)) > 1 or settings.change("micro_batch"):
        events.refused("micro_batch", settings.get("micro_batch_factor", 1), "the script makes its batches itself")
    if chosen is not asked:
        named["ckpt_path"] = chosen
        if chosen and "weights_only" in inspect.signature(fit).parameters and named.get("weights_only") is None:
            named["weights_only"] = False  # our own file: it may hold more than tensors
    if chosen and os.path.exists(str(chosen)):
        mine.resumed_from = str(chosen)
        mine.go_back()
    return named


def _mine(trainer: Any) -> Fit | None:
    return getattr(trainer, "_holdfast", None)


def _saving(save: Function) -> Function:
    def saved(self: Any, *args: Any, **kwargs: Any) -> Any:
        mine = _mine(self)
        if mine is None:
            return in_phase("save")(save)(self, *args, **kwargs)
        return mine.watched(save, given(save, (self, *args), kwargs))

    return saved


def _with_callback(init: Function, callback: type) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        try:
            _change_arguments(kwargs)
        except Exception as error:
            events.write("preload failed", where="Trainer", error=repr(error))
        init(self, *args, **kwargs)
        self.callbacks.append(callback())

    return __init__


def _change_arguments(kwargs: dict[str, Any]) -> None:
    if settings.change("device") == "cpu" and kwargs.get("accelerator", "auto") != "cpu":
        kwargs["accelerator"] = "cpu"
        if kwargs.get("devices", "auto") not in ("auto", 1, "1"):
            kwargs["devices"] = 1
        events.applied("device", "cpu", "Trainer(accelerator='cpu')")
    precision = settings.change("precision")
    asked = str(kwargs.get("precision") or "32-true")
    if precision == "fp32" and not asked.startswith(("32", "64")):
        kwargs["precision"] = "32-true"
        events.applied("precision", "fp32", f"Trainer(precision={asked!r})")
    elif precision == "bf16" and asked.startswith("16"):
        kwargs["precision"] = "bf16-mixed"
        events.applied("precision", "bf16", f"Trainer(precision={asked!r})")


def _callback(base: type) -> type:
    class HoldfastCallback(base):  # type: ignore[misc]  # known only when their library is loaded
        """Steps, losses and checkpoints by the clock."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            mine = _mine(trainer)
            if mine is not None:
                mine.begin()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
        ) -> None:
            mine = _mine(trainer)
            if mine is not None:
                mine.after_batch(outputs, batch_idx)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            mine = _mine(trainer)
            if mine is not None and isinstance(exception, SystemExit) and getattr(trainer, "received_sigterm", False):
                mine.interrupted()

    return HoldfastCallback
