"""The training loop, the same for every task: order, step, clip, update, evaluate, save.

Step *s* depends on the weights before it, the data and (seed, s), and on nothing else; so a run that was killed goes
on from its newest checkpoint exactly as if nothing had happened.
"""

import math
import signal
import time
from pathlib import Path
from types import FrameType

import torch

from holdfast.core.artifacts import write_artifact
from holdfast.core.events import Events
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import METRICS, checkpoints_folder, model_folder
from holdfast.engine.captured import CapturedSteps, StepResult
from holdfast.engine.checkpoint import Checkpoints
from holdfast.engine.optim import (
    clip_gradients,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from holdfast.engine.order import Indices, Order, step_seed
from holdfast.engine.settings import Settings
from holdfast.engine.tasks import Task

STOPPED = 143  # what a shell reports for a process that ended on SIGTERM


class BadNumbers(Exception):
    """The loss or the gradient is not a number; the weights were not touched."""


class Loop:
    """One attempt at one run."""

    def __init__(self, task: Task, settings: Settings, beat: BeatWriter, events: Events):
        self._task, self._settings, self._beat, self._events = task, settings, beat, events
        self._run = Path(settings.run)
        self._order = Order(task.lengths, settings.batch_size, settings.seed, settings.pool_batches)
        self.steps = settings.max_steps or settings.epochs * self._order.steps_per_epoch
        self._eval_steps = settings.eval_steps or self._order.steps_per_epoch
        self._optimizer = make_optimizer(task.model, settings)
        self._checkpoints = Checkpoints(checkpoints_folder(self._run), events)
        self._captured = self._make_captured()
        self._best: float | None = None
        self._best_step = -1
        self._is_stopping = False
        self._saved_at, self._saved_step = time.monotonic(), -1

    def train(self) -> int:
        """Train from the newest checkpoint to the end; give the exit code."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        first = self._resume()
        self._events.write("training", first_step=first, steps=self.steps, epoch_steps=self._order.steps_per_epoch)
        phase = "first step"
        for step in range(first, self.steps):
            if step % self._order.steps_per_epoch == 0:
                self._begin_epoch(step)
            self._beat.enter(phase, step, self.steps)
            self._step(step, self._order.examples(step))
            phase = "step"
            done = step + 1
            if done % self._eval_steps == 0 or done == self.steps:
                self._evaluate(done)
            if self._is_stopping:
                return self._stop(done)
            if done < self.steps and self._is_time_to_save():
                self._save(done)
        self._finish()
        return 0

    def _make_captured(self) -> CapturedSteps | None:
        """Steps as graphs, on a card, for tasks that offer them."""
        if not self._settings.is_on_card or self._settings.precision == "fp32" or not hasattr(self._task, "step_loss"):
            return None
        torch.use_deterministic_algorithms(True)
        norm, device = self._settings.max_grad_norm, self._settings.device
        return CapturedSteps(self._task.step_loss, self._optimizer, norm, device)

    def _begin_epoch(self, step: int) -> None:
        self._beat.enter("begin epoch", step, self.steps)
        epoch = step // self._order.steps_per_epoch
        made = self._task.begin_epoch(epoch)
        self._events.write("epoch", step=step, epoch=epoch, **made)
        if made and self._is_time_to_save():
            self._save(step, best=step == self._best_step)

    def _step(self, step: int, examples: Indices) -> None:
        rate = learning_rate(self._settings, step, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"].fill_(rate)
        if self._captured:
            arrays = self._task.step_arrays(examples)  # type: ignore[attr-defined]  # that is why it is captured
            for result in self._captured.run(step, arrays, step_seed(self._settings.seed, step)):
                self._record(result)
            return
        loss = float(self._task.forward_backward(step, examples))
        norm = float(clip_gradients(self._task.model.parameters(), self._settings.max_grad_norm))
        self._record(StepResult(step, loss, norm))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _record(self, result: StepResult) -> None:
        """Write down what a step gave; bad numbers end the run before they touch the weights."""
        if not math.isfinite(result.loss) or not math.isfinite(result.norm):
            self._refuse(result.step, self._order.examples(result.step), result.loss, result.norm)
        rate = learning_rate(self._settings, result.step, self.steps)
        self._events.write("step", step=result.step, loss=result.loss, lr=rate, norm=result.norm)

    def _catch_up(self) -> None:
        """Wait for steps that are still under way on a card."""
        if self._captured:
            for result in self._captured.drain():
                self._record(result)

    def _refuse(self, step: int, examples: Indices, loss: float, norm: float) -> None:
        """Keep the batch that gave bad numbers, and end before it touches the weights."""
        name = f"nan-batch-{step}.json"
        batch = self._task.show(examples)
        write_artifact(self._run, name, {"step": step, "loss": str(loss), "norm": str(norm), "batch": batch})
        raise BadNumbers(
            f"nan-loss: step {step} gave loss {loss} and gradient norm {norm}; its batch is in {self._run / name}"
        )

    def _evaluate(self, done: int) -> None:
        self._catch_up()
        self._beat.enter("evaluate", done, self.steps)
        metrics = self._task.evaluate("validation")
        self._events.write("evaluated", step=done, metrics=metrics)
        score = metrics.get(self._task.metric)
        if score is not None and (self._best is None or score > self._best):
            self._best, self._best_step = score, done
            self._save(done, best=True)

    def _save(self, done: int, best: bool = False) -> None:
        self._catch_up()
        self._beat.enter("save", done, self.steps)
        parts = {"weights": self._task.state(), "optimizer": optimizer_tensors(self._task.model, self._optimizer)}
        self._checkpoints.save(done, parts, {"best": self._best, "best_step": self._best_step}, best=best)
        self._saved_at, self._saved_step = time.monotonic(), done

    def _is_time_to_save(self) -> bool:
        """Often enough to lose little, seldom enough to cost at most one percent."""
        cost = self._checkpoints.stall_seconds + self._checkpoints.write_seconds
        return time.monotonic() - self._saved_at >= min(self._settings.save_seconds, max(5.0, 100 * cost))

    def _resume(self) -> int:
        self._beat.enter("resume")
        loaded = self._checkpoints.load_newest()
        if loaded is None:
            return 0
        self._task.load_state(loaded.parts.pop("weights"))
        load_optimizer_tensors(self._task.model, self._optimizer, loaded.parts.pop("optimizer"))
        self._best, self._best_step = loaded.facts["best"], loaded.facts["best_step"]  # type: ignore[assignment]
        self._saved_step = loaded.step
        self._events.write("resumed", step=loaded.step)
        return loaded.step

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True

    def _stop(self, done: int) -> int:
        if done != self._saved_step:
            self._save(done)
        self._checkpoints.wait()
        self._events.write("stopped", step=done)
        return STOPPED

    def _finish(self) -> None:
        if self._saved_step != self.steps:
            self._save(self.steps)
        self._checkpoints.wait()
        self._beat.enter("export", self.steps, self.steps)
        metrics = {"validation": self._task.evaluate("validation"), "test": self._task.evaluate("test")}
        write_artifact(self._run, METRICS, {split: found for split, found in metrics.items() if found})
        self._task.export(model_folder(self._run))
        self._beat.enter("end", self.steps, self.steps)
        self._events.write("finished", steps=self.steps, metrics=metrics)


def use_threads(settings: Settings) -> None:
    """Take the threads the plan gives; torch's own choice otherwise."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
