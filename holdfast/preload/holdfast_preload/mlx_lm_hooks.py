"""Hooks on mlx-lm's trainer (`mlx_lm.lora`, mlx-tune's SFTTrainer): exact resume, timed checkpoints, NaN, best model.

mlx-lm's own resume restores only the adapters; iterations, shuffling and optimizer begin again. Ours continues the same
training: weights, optimizer, random numbers, position in the shuffled data, and the iteration that its schedule is at.
Our checkpoints go to `checkpoints/train-N/` of the run folder. The best adapters, which mlx-lm does not keep, go to the
folder of its own ones.

`train()` pulls a batch from `iterate_batches` when everything else of the iteration before is done, so that is where we
save and restore. It counts iterations with `range`, which we replace in its module for one call.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import math
import os
import sys
import time
from typing import Any, Iterator

from holdfast_preload import (
    earlier_saves,
    event_writer,
    exit_marks,
    graceful_stop,
    mlx_saves,
    script_settings,
    whole_folders,
)
from holdfast_preload.beat_page import BEAT, FIRST_STEP, NUMBERS
from holdfast_preload.loss_check import LossCheck, numbers_of
from holdfast_preload.mlx_hooks import STEPS, are_finite
from holdfast_preload.save_timer import SaveTimer
from holdfast_preload.wraps import Function, around, given, in_phase

BEST = "best_adapters.safetensors"
_OF_TRAINING = ("loop", "train")  # what `iterate_batches` is called with for training; the second before mlx-lm 0.26


class MlxTraining:
    """One call of `train()`."""

    count = 0
    steps_before = 0  # iterations of the script's earlier trainings, so that the beat's step only grows

    def __init__(self, module: Any, named: dict[str, Any]):
        MlxTraining.count += 1
        self.number = MlxTraining.count
        self.module, self.args = module, named["args"]
        self.model, self.optimizer = named["model"], named["optimizer"]
        self.iterate, self.callback = named["iterate_batches"], named["training_callback"]
        self.losses, self.timer = LossCheck(self.number), SaveTimer()
        self.folder = os.path.join(script_settings.run_folder(), "checkpoints", f"train-{self.number}")
        self.adapters = os.path.dirname(os.path.abspath(str(self.args.adapter_file)))
        self.updates_every = max(1, int(getattr(self.args, "grad_accumulation_steps", 1)))
        # What decides the order of the data and the schedule: a checkpoint with other values is not continued.
        self.same = {
            "iters": int(self.args.iters),
            "batch_size": int(self.args.batch_size),
            "grad_accumulation_steps": self.updates_every,
            "rows": len(named["train_dataset"]),
            "optimizer": type(self.optimizer).__name__,
        }
        self.best: float | None = None
        self.resumed_from, self.first = "", 0
        self._has_skipped = False
        self._restored: dict[str, Any] = {}

    def choose_checkpoint(self) -> None:
        """Find the checkpoint to continue from, and read it."""
        events = earlier_saves.earlier_events(script_settings.attempt) if script_settings.get("resume") else []
        for saved in earlier_saves.saved_by(self.number, events):
            if os.path.isdir(saved.path):
                reason = whole_folders.why_broken(saved.path) or self._why_other(saved.path)
                if not reason:
                    self.resumed_from, self.first = saved.path, saved.step
                    return
                earlier_saves.report_skipped(saved.path, reason)

    def _why_other(self, path: str) -> str:
        state = mlx_saves.state_of(path)
        if state.get("same") != self.same:
            return f"it was made with {state.get('same')}, and this training has {self.same}"
        found = {name: mlx_saves.load(path, name) for name in ("weights", "optimizer")}
        if mlx_saves.shapes(found["weights"]) != mlx_saves.shapes(self._weights()):
            return "its weights have other names, shapes or types"
        self._restored = {**state, **found}
        return ""

    def count_from(self, *bounds: int) -> Any:
        """Take the place of `range` for the loop over iterations, which then begins after those already done."""
        if bounds == (1, int(self.args.iters) + 1):
            self.module.__dict__.pop("range", None)
            self._has_skipped = True
            return builtins.range(self.first + 1, bounds[1])
        return builtins.range(*bounds)

    def batches(self, *args: Any, **kwargs: Any) -> Any:
        """Take the place of `iterate_batches`; evaluations get theirs as they are."""
        is_training = any(kwargs.get(name) for name in _OF_TRAINING)
        return self._training_batches(args, kwargs) if is_training else self.iterate(*args, **kwargs)

    def _training_batches(self, args: Any, kwargs: Any) -> Iterator[Any]:
        np = sys.modules["numpy"]
        inner = self.iterate(*args, **kwargs)
        if self.resumed_from and not self._has_skipped:  # an unknown version of the loop: it begins at 1
            self.resumed_from, self.first = "", 0
        if self.resumed_from:
            order, pulled = self._restored["epoch_random"], self._restored["epoch_batches"]
            _set_numpy(np, order)
            for _ in builtins.range(pulled):
                next(inner)
            self._restore(np)
        else:
            order, pulled = _numpy_state(np), 0
        self.begin()
        step = self.first
        while True:
            if step > self.first:
                self.after_step(step, order, pulled)
            before = _numpy_state(np)
            batch = next(inner)
            if _numpy_state(np) != before:  # it has shuffled the batches of a new epoch
                order, pulled = before, 0
            pulled, step = pulled + 1, step + 1
            yield batch

    def _restore(self, np: Any) -> None:
        mx, utils = sys.modules["mlx.core"], sys.modules["mlx.utils"]
        self.model.update(utils.tree_unflatten(list(self._restored["weights"].items())))
        self.optimizer.init(self.model.trainable_parameters())
        mlx_saves.fill(self.optimizer.state, self._restored["optimizer"])
        high, low = self._restored["random_key"]
        mx.random.seed((high << 32) | low)  # the key of a seed is the seed's two halves
        _set_numpy(np, self._restored["random"])
        self.best = self._restored["best"]
        self._restored = {}

    def begin(self) -> None:
        """The loop is about to take its first step."""
        graceful_stop.arm()
        BEAT.steps, BEAT.step = self.steps_before + int(self.args.iters), self.steps_before + self.first
        BEAT.enter(NUMBERS["resume"] if self.resumed_from else FIRST_STEP)
        if self.resumed_from:
            self.losses.last_finite_step = self.first
            event_writer.write("resumed", checkpoint=self.resumed_from, step=self.first, train=self.number)
        elif script_settings.get("resume") and self.number == 1:
            event_writer.write("started_over", train=self.number)

    def after_step(self, step: int, order: Any, pulled: int) -> None:
        """Beat, and save or stop if it is time to, between an iteration and the next."""
        BEAT.step = self.steps_before + step - 1
        BEAT.stepped()
        if step % self.updates_every == 0 and self.timer.is_due(step):
            self.save(step, order, pulled)

    def save(self, step: int, order: Any, pulled: int) -> None:
        """Make a checkpoint, and stop if requested. A failed save is only an event."""
        path = os.path.join(self.folder, f"step-{step}")
        if script_settings.get("may_save", True):
            before, start = BEAT.enter(NUMBERS["save"]), time.monotonic()
            try:
                self.losses.check_weights(self._weights(), step, are_finite)
                event_writer.write("checkpoint_started", path=path, step=step, train=self.number)
                np, mx = sys.modules["numpy"], sys.modules["mlx.core"]
                state = {
                    "step": step,
                    "same": self.same,
                    "best": self.best,
                    "random": _numpy_state(np),
                    "random_key": np.array(mx.random.state[0]).tolist(),
                    "epoch_random": order,
                    "epoch_batches": pulled,
                }
                mlx_saves.save(path, {"weights": self._weights(), "optimizer": self.optimizer.state}, state)
                seconds = time.monotonic() - start
                self.timer.saved(step, seconds)
                event_writer.write(
                    "checkpoint_saved", path=path, step=step, train=self.number, seconds=round(seconds, 3)
                )
                whole_folders.keep_few(self.folder)
            except Exception as error:
                if self.losses.has_ended:
                    raise
                event_writer.write("checkpoint_failed", step=step, reason=repr(error), train=self.number)
                self.timer.last_end = time.monotonic()
            finally:
                BEAT.leave(before)
        if self.timer.must_stop:
            event_writer.write("training_stopped", step=step, train=self.number, saved=self.timer.last_step == step)
            exit_marks.leave(143)

    def on_train_loss_report(self, info: dict[str, Any]) -> None:
        """Called by `train()`: check the loss."""
        if self.callback is not None:
            self.callback.on_train_loss_report(info)
        names = {"train_loss": "loss", "learning_rate": "learning_rate"}  # as a Trainer logs them
        values = {ours: float(info[theirs]) for theirs, ours in names.items() if theirs in info}
        self.losses.check_log(values, int(info["iteration"]))

    def on_val_loss_report(self, info: dict[str, Any]) -> None:
        """Called by `train()`: report the evaluation, and keep the best adapters."""
        step, loss = int(info["iteration"]), float(info["val_loss"])
        event_writer.write("evaluated", step=step, metrics=numbers_of({"val_loss": loss}))
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best = loss
            if step and script_settings.get("may_save", True):  # before the first step nothing was learned
                in_phase("save")(mlx_saves.save_file)(os.path.join(self.adapters, BEST), self._weights())
        if self.callback is not None:
            self.callback.on_val_loss_report(info)

    def _weights(self) -> dict[str, Any]:
        return dict(sys.modules["mlx.utils"].tree_flatten(self.model.trainable_parameters()))


def after_utils(module: Any) -> None:
    """The phase of loading a model."""
    around(module, "load", in_phase("load"))


def after_trainer(module: Any) -> None:
    """Watch every training and evaluation."""
    around(module, "evaluate", in_phase("evaluate"))
    around(module, "train", lambda train: _training(module, train))


def _training(module: Any, train: Function) -> Function:
    def trained(*args: Any, **kwargs: Any) -> Any:
        try:
            named = {**_defaults(train), **given(train, args, kwargs)}
            _change_args(named)
            mine = _watch(module, named)
        except Exception as error:
            event_writer.write("hook_failed", where="mlx_lm train", error=repr(error))
            return train(*args, **kwargs)
        if mine is None:
            return train(**named)
        try:
            STEPS.is_paused = True
            result = train(**named)
        finally:
            STEPS.is_paused = False
            module.__dict__.pop("range", None)
            graceful_stop.disarm()
        MlxTraining.steps_before += int(mine.args.iters)
        BEAT.step = MlxTraining.steps_before
        BEAT.beat()
        event_writer.write("script_trained", train=mine.number, step=int(mine.args.iters))
        return result

    return trained


def _watch(module: Any, named: dict[str, Any]) -> MlxTraining | None:
    """Put a training of ours between the loop and its parts; None if it can only be watched from its steps."""
    folder = os.path.dirname(os.path.abspath(str(named["args"].adapter_file)))
    reason = _why_not_resumed(module, named)
    event_writer.write("part_used", what="mlx-lm", output_dir=folder, can_stop=not reason)
    if reason:
        event_writer.write_once("not_observed", module="mlx_lm.tuner.trainer", name="train", because=reason)
        return None
    mine = MlxTraining(module, named)
    mine.choose_checkpoint()
    if mine.resumed_from:
        module.range = mine.count_from
    named["iterate_batches"], named["training_callback"] = mine.batches, mine
    return mine


def _why_not_resumed(module: Any, named: dict[str, Any]) -> str:
    if sys.modules["mlx.core"].distributed.init().size() > 1:
        return "several processes"
    if named["iterate_batches"] is not module.iterate_batches:
        return "the script's own batches"
    if not any(name in inspect.signature(module.iterate_batches).parameters for name in _OF_TRAINING):
        return "an unknown version"
    return ""


def _change_args(named: dict[str, Any]) -> None:
    for change in ("micro_batch", "eval_micro_batch"):
        factor = int(script_settings.get(f"{change}_factor", 1))
        if factor > 1 or script_settings.change(change):
            event_writer.refused(
                change, factor, "mlx-lm shuffles whole batches, so smaller ones would change the order"
            )
    if script_settings.change("gradient_checkpointing") is True and not named["args"].grad_checkpoint:
        named["args"] = dataclasses.replace(named["args"], grad_checkpoint=True)
        event_writer.applied("gradient_checkpointing", True, "TrainingArgs(grad_checkpoint=True)")


def _defaults(function: Function) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def _numpy_state(np: Any) -> list[Any]:
    """The state of numpy's global random numbers, as JSON keeps it."""
    kind, keys, *rest = np.random.get_state()
    return [kind, keys.tolist(), *rest]


def _set_numpy(np: Any, state: list[Any]) -> None:
    kind, keys, *rest = state
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
