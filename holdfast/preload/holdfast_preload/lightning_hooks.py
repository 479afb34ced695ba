"""Hooks on Lightning's Trainer: `ckpt_path` of the newest intact checkpoint, timed checkpoints, device, precision, NaN.

Our checkpoints go to `checkpoints/fit-N/` of the run folder. For every checkpoint, also the script's own, we keep the
position of the data loaders, which Lightning does not; so a resumed run ends with the same weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import time
from typing import Any

from holdfast_preload import earlier_saves, event_writer, exit_marks, graceful_stop, loader_state, script_settings
from holdfast_preload.beat_page import BEAT, FIRST_STEP, NUMBERS
from holdfast_preload.checkpoint_files import why_broken_file
from holdfast_preload.loss_check import LossCheck
from holdfast_preload.save_timer import SaveTimer
from holdfast_preload.wraps import Function, around, given, in_phase

_KEEP = 2
_LOSS_SECONDS = 1.0  # between checks of the loss, each of which waits for the device
_KEYWORDS = ("last", "best", "hpc", "registry")


class Fit:
    """One call of `fit()`."""

    count = 0
    steps_before = 0

    def __init__(self, trainer: Any):
        Fit.count += 1
        self.number = Fit.count
        self.trainer = trainer
        self.folder = os.path.join(script_settings.run_folder(), "checkpoints", f"fit-{self.number}")
        self.losses = LossCheck(
            self.number, is_scaled="16" in str(trainer.precision) and "bf" not in str(trainer.precision)
        )
        self.timer = SaveTimer()
        self.next_loss = 0.0
        self.ours: list[str] = []
        self.resumed_from = ""

    def begin(self) -> None:
        """The loop is about to take its first step."""
        graceful_stop.arm()
        step = int(self.trainer.global_step)
        total = self.trainer.estimated_stepping_batches
        BEAT.step = self.steps_before + step
        BEAT.steps = self.steps_before + int(total) if total != float("inf") and total > 0 else 0
        BEAT.enter(NUMBERS["resume"] if self.resumed_from else FIRST_STEP)
        if self.resumed_from:
            self.losses.last_finite_step = step
            event_writer.write("resumed", checkpoint=self.resumed_from, step=step, train=self.number)
        elif script_settings.get("resume") and self.number == 1:
            event_writer.write("started_over", train=self.number)

    def after_batch(self, outputs: Any, batch_at: int) -> None:
        """Check the loss and the clock after a batch; save only between steps, and not at the end of an epoch."""
        trainer = self.trainer
        step = int(trainer.global_step)
        BEAT.step = self.steps_before + step
        many = int(trainer.world_size) > 1
        is_due = self.timer.is_due(step, self._broadcast if many else None)
        if not many and getattr(trainer, "received_sigterm", False):  # Lightning handles the signal itself
            is_due = self.timer.must_stop = True
        if is_due or time.monotonic() > self.next_loss:
            self.next_loss = time.monotonic() + _LOSS_SECONDS
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                self.losses.check_log({"loss": float(loss)}, step, is_reported=bool(trainer.is_global_zero))
        if (
            not is_due
            or trainer.fit_loop._should_accumulate()
            or trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        ):
            return
        self.save(step)

    def save(self, step: int) -> None:
        """Make a checkpoint of ours, and stop if requested. A failed save is only an event."""
        path = os.path.join(self.folder, f"step-{step}.ckpt")
        if step != self.timer.last_step and script_settings.get("may_save", True):
            try:
                self.trainer.save_checkpoint(path, False)  # with optimizer and loops
                self._keep_few(path)
            except Exception as error:
                if self.losses.has_ended:
                    raise
                event_writer.write("checkpoint_failed", step=step, reason=repr(error), train=self.number)
                self.timer.last_end = time.monotonic()
        if self.timer.must_stop:
            event_writer.write("training_stopped", step=step, train=self.number, saved=self.timer.last_step == step)
            exit_marks.leave(143)

    def interrupted(self) -> None:
        """Save when Lightning itself stops, after SIGTERM between two batches."""
        step = int(self.trainer.global_step)
        if not self.timer.must_stop:
            if not self.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                self.save(step)
            event_writer.write("training_stopped", step=step, train=self.number, saved=self.timer.last_step == step)

    def watched(self, save: Function, named: dict[str, Any]) -> Any:
        """Save as Lightning does, but never NaN, with an event before and after."""
        step, path = int(self.trainer.global_step), os.path.abspath(str(named["filepath"]))
        is_reported = bool(self.trainer.is_global_zero) and not named.get("weights_only")
        self.losses.check_weights(self.trainer.lightning_module, step)
        if is_reported:
            loader_state.write(self.order_file(path), [loader_state.where(loader) for loader in self.loaders()])
            event_writer.write("checkpoint_started", path=path, step=step, train=self.number)
        start = time.monotonic()
        result = in_phase("save")(save)(**named)
        seconds = time.monotonic() - start
        if not named.get("weights_only"):  # weights alone cannot be resumed
            self.timer.saved(step, seconds)
        if is_reported:
            event_writer.write("checkpoint_saved", path=path, step=step, train=self.number, seconds=round(seconds, 3))
        return result

    def loaders(self) -> list[Any]:
        """The training loaders in Lightning's order."""
        combined = getattr(self.trainer.fit_loop, "_combined_loader", None)
        return [loader for loader in getattr(combined, "flattened", []) if hasattr(loader, "__dict__")]

    def order_file(self, path: str) -> str:
        """The file with the loaders' positions at a checkpoint."""
        return os.path.join(self.folder, "order", hashlib.sha1(path.encode()).hexdigest()[:16])

    def restore_loaders(self) -> None:
        """Let the loaders continue from their positions at the checkpoint."""
        states = loader_state.read(self.order_file(self.resumed_from))
        if any(states):
            loader_state.pending.append((self._place, states))

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
    loader_state.is_recorded = True
    trainer = module.Trainer
    around(trainer, "__init__", lambda init: _with_callback(init, _callback(module.Callback)))
    around(trainer, "fit", _fitting)
    around(trainer, "save_checkpoint", _saving)


def after_evaluation_loop(module: Any) -> None:
    """The phase of evaluating, also within a fit."""
    around(module._EvaluationLoop, "run", in_phase("evaluate"))


def choose_checkpoint(asked: Any, number: int) -> Any:
    """The value for `fit(ckpt_path=...)`: the script's own, unless it is broken or older than ours."""
    ours = ""
    if script_settings.get("resume"):
        for saved in earlier_saves.saved_by(number, earlier_saves.earlier_events(script_settings.attempt)):
            reason = why_broken_file(saved.path) if os.path.isfile(saved.path) else ""
            if reason:
                earlier_saves.report_skipped(saved.path, reason)
            elif os.path.exists(saved.path):
                ours = saved.path
                break
    if asked is None or ours or str(asked).startswith(_KEYWORDS) or not os.path.isfile(str(asked)):
        return ours or asked
    reason = why_broken_file(str(asked))
    if reason:
        earlier_saves.report_skipped(str(asked), reason)
        event_writer.write("started_over", folder=os.path.dirname(str(asked)))
    return None if reason else asked


def _fitting(fit: Function) -> Function:
    def fitted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            named = _choose(self, given(fit, (self, *args), kwargs), fit)
        except Exception as error:
            event_writer.write("hook_failed", where="Trainer.fit", error=repr(error))
            return fit(self, *args, **kwargs)
        try:
            result = fit(**named)
        except SystemExit as end:
            if end.code or not getattr(self, "received_sigterm", False):
                raise
            exit_marks.leave(143)  # Lightning exits with 0, as if it had finished
        finally:
            graceful_stop.disarm()
        mine = _mine(self)
        if mine is not None:
            event_writer.write("script_trained", train=mine.number, step=int(self.global_step))
            Fit.steps_before += int(self.global_step)
        return result

    return fitted


def _choose(trainer: Any, named: dict[str, Any], fit: Function) -> dict[str, Any]:
    mine = trainer._holdfast = Fit(trainer)
    asked = named.get("ckpt_path")
    chosen = choose_checkpoint(asked, mine.number)
    root = str(getattr(trainer, "default_root_dir", ""))
    event_writer.write("part_used", what="lightning", output_dir=root, train=mine.number, can_stop=True)
    if int(script_settings.get("micro_batch_factor", 1)) > 1 or script_settings.change("micro_batch"):
        event_writer.refused(
            "micro_batch", script_settings.get("micro_batch_factor", 1), "the script makes its own batches"
        )
    if chosen is not asked:
        named["ckpt_path"] = chosen
        if chosen and "weights_only" in inspect.signature(fit).parameters and named.get("weights_only") is None:
            named["weights_only"] = False  # our own file, which holds more than tensors
    if chosen and os.path.exists(str(chosen)):
        mine.resumed_from = str(chosen)
        mine.restore_loaders()
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
            event_writer.write("hook_failed", where="Trainer", error=repr(error))
        init(self, *args, **kwargs)
        self.callbacks.append(callback())

    return __init__


def _change_arguments(kwargs: dict[str, Any]) -> None:
    if script_settings.change("device") == "cpu" and kwargs.get("accelerator", "auto") != "cpu":
        kwargs["accelerator"] = "cpu"
        if kwargs.get("devices", "auto") not in ("auto", 1, "1"):
            kwargs["devices"] = 1
        event_writer.applied("device", "cpu", "Trainer(accelerator='cpu')")
    precision = script_settings.change("precision")
    asked = str(kwargs.get("precision") or "32-true")
    if precision == "fp32" and not asked.startswith(("32", "64")):
        kwargs["precision"] = "32-true"
        event_writer.applied("precision", "fp32", f"Trainer(precision={asked!r})")
    elif precision == "bf16" and asked.startswith("16"):
        kwargs["precision"] = "bf16-mixed"
        event_writer.applied("precision", "bf16", f"Trainer(precision={asked!r})")


def _callback(base: type) -> type:
    class HoldfastLightningCallback(base):  # type: ignore[misc]  # known only when their library is loaded
        """Reports steps and losses, and saves by the clock."""

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

    return HoldfastLightningCallback
