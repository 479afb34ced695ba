"""Hooks on HF's Trainer, and so on SFTTrainer and SentenceTransformerTrainer: resume, timed checkpoints, NaN, progress.

Each call of `train()` is a `Training` with a number. It continues from the newest intact checkpoint of the same call in
an earlier attempt, saves when a minute has passed, and ends the run when the loss becomes NaN.
"""

from __future__ import annotations

import os
import time
from typing import Any

from holdfast_preload import earlier_saves, event_writer, graceful_stop, script_settings
from holdfast_preload.beat_page import BEAT, FIRST_STEP, NUMBERS
from holdfast_preload.checkpoint_files import numbered, read_state, why_broken
from holdfast_preload.loss_check import LossCheck, numbers_of
from holdfast_preload.trainer_changes import change_batches, keep_mean
from holdfast_preload.trainer_saves import Saves
from holdfast_preload.wraps import Function, around, given, in_phase


class AlreadyDone(BaseException):
    """Leaves the Trainer's loop before a surplus step, when the resumed training was already complete."""


class Training:
    """One call of `train()`."""

    count = 0
    saves_itself = True  # False if this version's loop has no place for us: then we ask the Trainer to save
    steps_before = 0  # steps of the script's earlier trainings, so that the beat's step only grows

    def __init__(self, trainer: Any):
        Training.count += 1
        self.number = Training.count
        self.trainer = trainer
        self.losses = LossCheck(self.number, is_scaled=bool(getattr(trainer.args, "fp16", False)))
        self.saves = Saves(self.number, trainer, self.losses)
        self.resumed_from = ""
        self.first_step = 0

    def begin(self, state: Any) -> None:
        """The loop is about to take its first step."""
        graceful_stop.arm()
        BEAT.steps = self.steps_before + max(0, int(state.max_steps))
        BEAT.step = self.steps_before + int(state.global_step)
        BEAT.enter(NUMBERS["resume"] if self.resumed_from else FIRST_STEP)
        if self.resumed_from:
            self.losses.last_finite_step = int(state.global_step)
            event_writer.write("resumed", checkpoint=self.resumed_from, step=int(state.global_step), train=self.number)
        elif script_settings.get("resume") and self.number == 1:
            event_writer.write("started_over", train=self.number)
        self.first_step = int(state.global_step)
        if self.resumed_from and is_complete(self.resumed_from) and hasattr(self.trainer, "_finalize_training"):
            raise AlreadyDone

    def end(self) -> None:
        """The loop has ended by itself."""
        state = self.trainer.state
        if self.resumed_from and int(state.global_step) == self.first_step and hasattr(self.trainer, "_load_rng_state"):
            self.trainer._load_rng_state(self.resumed_from)  # so that later code draws the same random numbers
        event_writer.write("script_trained", train=self.number, step=int(state.global_step))
        Training.steps_before += int(state.global_step)


def after_trainer(module: Any) -> None:
    """Watch every Trainer."""
    trainer = module.Trainer
    around(trainer, "__init__", lambda init: _with_callback(init, _callback(module.TrainerCallback)))
    around(trainer, "train", _training)
    around(trainer, "_save_checkpoint", _saving)
    Training.saves_itself = around(trainer, "_maybe_log_save_evaluate", _then_save)
    around(trainer, "_load_from_checkpoint", in_phase("resume"))
    for name in ("evaluate", "predict"):
        around(trainer, name, in_phase("evaluate"))


def _training(train: Function) -> Function:
    def trained(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            named = _choose(self, given(train, (self, *args), kwargs))
        except Exception as error:
            event_writer.write("hook_failed", where="Trainer.train", error=repr(error))
            return train(self, *args, **kwargs)
        try:
            result = train(**named)
        except AlreadyDone:
            result = self._finalize_training(None, 0, time.time())
        finally:
            graceful_stop.disarm()
        mine = _mine(self)
        if mine is not None:
            mine.end()
        return result

    return trained


def _choose(trainer: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments with the checkpoint to continue from; hyperparameter searches are left alone."""
    if named.get("trial") is not None:
        return named
    mine = trainer._holdfast = Training(trainer)
    asked = named.get("resume_from_checkpoint")
    chosen = choose_checkpoint(asked, str(trainer.args.output_dir), mine.number)
    event_writer.write(
        "part_used", what=_kind(trainer), output_dir=str(trainer.args.output_dir), train=mine.number, can_stop=True
    )
    if isinstance(chosen, str):
        mine.resumed_from = chosen
        if chosen != asked and getattr(trainer.args, "ignore_data_skip", False):
            trainer.args.ignore_data_skip = False  # otherwise examples would be seen twice
    named["resume_from_checkpoint"] = chosen
    return named


def _kind(trainer: Any) -> str:
    homes = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    return next((f"{home}-trainer" for home in ("sentence_transformers", "trl") if home in homes), "hf-trainer")


def _mine(trainer: Any) -> Training | None:
    return getattr(trainer, "_holdfast", None)


def _with_callback(init: Function, callback: type) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        try:
            named = given(init, (self, *args), kwargs)
            if named.get("args") is not None:
                change_batches(self, named["args"], named.get("model"))
        except Exception as error:
            event_writer.write("hook_failed", where="Trainer", error=repr(error))
        init(self, *args, **kwargs)
        try:
            keep_mean(self)
            self.add_callback(callback(self))
        except Exception as error:
            event_writer.write("hook_failed", where="Trainer.add_callback", error=repr(error))

    return __init__


def _callback(base: type) -> type:
    class HoldfastTrainerCallback(base):  # type: ignore[misc]  # known only when their library is loaded
        """Reports steps, logs and metrics."""

        def __init__(self, trainer: Any):
            self._trainer = trainer

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            mine = _mine(self._trainer)
            if mine is not None:
                mine.begin(state)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            mine = _mine(self._trainer)
            if mine is not None:
                BEAT.step = mine.steps_before + state.global_step
                if not mine.saves_itself and mine.saves.is_due():
                    control.should_save = True

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            if state.is_world_process_zero:
                event_writer.write("evaluated", step=int(state.global_step), metrics=numbers_of(metrics or {}))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            mine = _mine(self._trainer)
            if mine is not None:
                mine.losses.check_log(
                    dict(logs or {}), int(state.global_step), is_reported=bool(state.is_world_process_zero)
                )

    return HoldfastTrainerCallback


def _saving(save: Function) -> Function:
    def saved(self: Any, *args: Any, **kwargs: Any) -> Any:
        mine = _mine(self)
        if mine is None:
            return in_phase("save")(save)(self, *args, **kwargs)
        return mine.saves.watched(save, args, kwargs)

    return saved


def _then_save(maybe: Function) -> Function:
    def then_save(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = maybe(self, *args, **kwargs)
        mine = _mine(self)
        if mine is not None:
            model = given(maybe, (self, *args), kwargs).get("model") if mine.saves.is_due() else None
            if model is not None:
                mine.saves.save(model)
        return result

    return then_save


def choose_checkpoint(asked: Any, output_dir: str, train: int) -> Any:
    """The value for `train(resume_from_checkpoint=...)`: the script's own, unless it is broken or older than ours."""
    ours = _newest_of_this_run(output_dir, train) if script_settings.get("resume") else ""
    if isinstance(asked, (str, os.PathLike)):
        return _of_a_path(str(asked), ours)
    if asked is True:
        return ours or _newest_intact(output_dir, asked)
    return ours or asked


def is_complete(path: str) -> bool:
    """Whether a checkpoint is of a training that ended within an epoch: the Trainer would continue it."""
    state = read_state(path) or {}
    most, epoch = state.get("max_steps") or 0, float(state.get("epoch") or 0)
    return 0 < most <= state.get("global_step", 0) and epoch != int(epoch)


def _of_a_path(asked: str, ours: str) -> str | None:
    reason = why_broken(asked)
    if not reason:
        return ours if ours and _step(ours) > _step(asked) else asked
    if not os.path.isdir(asked):
        return ours or asked  # perhaps a name that only the library understands
    earlier_saves.report_skipped(asked, reason)
    return ours or _newest_intact(os.path.dirname(os.path.abspath(asked)), None)


def _newest_of_this_run(output_dir: str, train: int) -> str:
    told = earlier_saves.earlier_events(script_settings.attempt)
    found = earlier_saves.saved_by(train, told)
    if not any(event.get("event") == "checkpoint_started" for event in told):
        found = earlier_saves.written_since_the_run_began(output_dir, script_settings.attempt)
    for saved in found:
        if os.path.isdir(saved.path) and _may_continue(saved.path):
            return saved.path
    return ""


def _newest_intact(folder: str, otherwise: Any) -> Any:
    found = numbered(folder)
    for _, path in found:
        if _may_continue(path):
            return path
    if found:
        event_writer.write("started_over", folder=folder)
        return None
    return otherwise


def _may_continue(path: str) -> bool:
    reason = why_broken(path)
    if not reason and not _has_optimizer(path):
        reason = "it has no optimizer state, so training would not continue identically"
    if reason:
        earlier_saves.report_skipped(path, reason)
    return not reason


def _has_optimizer(path: str) -> bool:
    return any(name.startswith(("optimizer", "global_step")) for name in os.listdir(path))


def _step(path: str) -> int:
    return int((read_state(path) or {"global_step": 0})["global_step"])
