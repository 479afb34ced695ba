"""The training loop, the same for every task: order, step, clip, update, evaluate, save.

Step *s* depends on the weights before it, the data and (seed, s), and on nothing else; so a run that was killed goes
on from its newest checkpoint exactly as if nothing had happened. Several ranks each do their part of a step and meet
before it counts (`engine.meeting`); the first of them tells and writes.
"""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.old_events import Events
from holdfast.core.runfolder import checkpoints_folder
from holdfast.engine.bad_numbers import keep_bad_batch
from holdfast.engine.cadence import SaveCost, is_time_to_save, share_over_budget
from holdfast.engine.captured import StepResult, make_captured
from holdfast.engine.checkpoint import Loaded, Tensors, is_full
from holdfast.engine.finished import write_finished
from holdfast.engine.identity import identity_of, require_same
from holdfast.engine.lives import lives_of
from holdfast.engine.meeting import Meeting
from holdfast.engine.optim import (
    clip_gradients,
    clip_in_step,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_bytes,
    optimizer_tensors,
)
from holdfast.engine.order import Indices, Order, step_seed
from holdfast.engine.rank_saves import make_checkpoints
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.settings import Settings
from holdfast.engine.shared_adamw import SharedAdamW
from holdfast.engine.stopping import STOPPED, Interrupted, Stopping
from holdfast.engine.tasks import Task


class Loop:
    """One attempt at one run."""

    def __init__(self, task: Task, settings: Settings, beat: BeatWriter, events: Events, ranks: Ranks = ALONE):
        self._task, self._settings, self._beat, self._events = task, settings, beat, events
        self._ranks = ranks
        self._run = Path(settings.run)
        self._order = Order(task.lengths, settings.batch_size, settings.seed, settings.pool_batches)
        self.steps = settings.max_steps or settings.epochs * self._order.steps_per_epoch
        self._eval_steps = settings.eval_steps or self._order.steps_per_epoch
        self._optimizer = make_optimizer(task.model, settings)
        self._checkpoints = make_checkpoints(checkpoints_folder(self._run), events, ranks)
        self._captured = None if ranks.are_many else make_captured(task, settings, self._optimizer)
        self._meeting = Meeting(ranks, task.model) if ranks.are_many else None
        self._identity = identity_of(settings)
        ranks.require_same(str(self._identity["model"]), f"the model in {settings.model}")
        self._stopping = ranks.stopping or Stopping()
        self._best: float | None = None
        self._best_step, self._evaluated_step = -1, 0
        self._saved_at, self._saved_step, self._step_seconds = time.monotonic(), -1, 0.0
        self._has_said_saving_is_dear = False
        self._lives, self._began_at = lives_of(self._run), time.monotonic()
        self._is_stopping, self._is_save_due = False, False  # as ranks agreed in the last step
        self._others_cpu_seconds = 0.0

    def train(self) -> int:
        """Train from the newest checkpoint to the end; give the exit code."""
        with self._stopping.watched():
            first = self._resume()
            self._tell_begin(first)
            done = first
            try:
                self._evaluate_if_due(first)
                for step in range(first, self.steps):
                    self._train_one(step, "first step" if step == first else "step")
                    done = step + 1
                    if self._is_stopping:
                        raise Interrupted
                    if done < self.steps and (self._is_save_due if self._meeting else self._is_time_to_save()):
                        self._save(done)
                    self._evaluate_if_due(done)
                self._finish()
            except Interrupted:
                return self._stop(done)
            return 0

    def _tell_begin(self, first: int) -> None:
        # Ranks also look for a file that asks them to stop: after a signal their launcher has little patience.
        manner = {"can_stop": True} if self._ranks.are_many else {}
        steps = {"first_step": first, "steps": self.steps, "epoch_steps": self._order.steps_per_epoch}
        self._events.write("training", **steps, **manner)

    def _train_one(self, step: int, phase: str) -> None:
        begun = time.monotonic()
        is_new = False
        with self._interruptible():
            if step % self._order.steps_per_epoch == 0:
                is_new = self._begin_epoch(step)
        if is_new and self._ranks.tell(self._is_time_to_save()):
            self._save(step, is_begun=True)
        self._beat.enter(phase, step, self.steps)
        self._step(step, self._order.examples(step))
        self._step_seconds = time.monotonic() - begun

    def _begin_epoch(self, step: int) -> bool:
        """Let the task make what the epoch needs; say whether it made something that a checkpoint would keep."""
        self._beat.enter("begin epoch", step, self.steps)
        epoch = step // self._order.steps_per_epoch
        made = self._task.begin_epoch(epoch)
        self._events.write("epoch", step=step, epoch=epoch, **made)
        return bool(made)

    def _step(self, step: int, examples: Indices) -> None:
        rate = learning_rate(self._settings, step, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"].fill_(rate)
        arrays = self._task.step_arrays(step, examples) if self._captured else None
        if self._captured and arrays:
            if not self._task.model.training:
                self._task.model.train()
            for result in self._captured.run(step, arrays, step_seed(self._settings.seed, step)):
                self._record(result)
            return
        self._catch_up()
        loss = self._meet(step, examples) if self._meeting else self._loss(step, examples)
        norm = float(self._clip())
        self._record(StepResult(step, loss, norm))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _loss(self, step: int, examples: Indices) -> float:
        """This process's part of the step, and of its loss."""
        is_apart = not (self._task.meets_within_steps or self._ranks.in_lockstep)
        with self._stopping.interruptible() if is_apart else self._interruptible():
            return float(self._task.forward_backward(step, examples))

    def _meet(self, step: int, examples: Indices) -> float:
        """The step together with the other ranks: the whole loss, and the whole gradient in the weights."""
        assert self._meeting is not None
        loss, has_left = 0.0, False
        try:
            loss = self._loss(step, examples)
        except Interrupted:
            has_left = True
        met = self._meeting.hold(
            loss,
            has_left=has_left,
            is_stopping=self._ranks.is_asked_to_stop(),
            is_time_to_save=self._is_time_to_save(),
        )
        if met.has_left:
            self._optimizer.zero_grad(set_to_none=True)
            raise Interrupted
        self._meeting.add_gradients()
        self._is_stopping, self._is_save_due = met.is_stopping, met.is_time_to_save
        self._others_cpu_seconds = met.cpu_seconds - time.process_time()
        return met.loss

    def _interruptible(self) -> AbstractContextManager[None]:
        """Let a signal interrupt what this process does alone; ranks that work together are asked by `Ranks.apart`."""
        return nullcontext() if self._meeting else self._stopping.interruptible()

    def _clip(self) -> Tensor:
        most = self._settings.max_grad_norm
        if isinstance(self._optimizer, SharedAdamW):
            return clip_in_step(self._optimizer, most)
        return clip_gradients(self._task.model.parameters(), most)

    def _record(self, result: StepResult) -> None:
        """Write down what a step gave; bad numbers end the run before they touch the weights."""
        if not math.isfinite(result.loss) or not math.isfinite(result.norm):
            batch = self._task.show(self._order.examples(result.step))
            bad = keep_bad_batch(self._run if self._ranks.is_first else None, result, batch)
            self._events.write("bad numbers", reason=str(bad))
            self._ranks.wait()  # the first rank that ends takes the others down
            raise bad
        rate = learning_rate(self._settings, result.step, self.steps)
        numbers = {"loss": result.loss, "lr": rate, "norm": result.norm}
        self._events.write("step", step=result.step, **numbers, **self._cost())

    def _cost(self) -> dict[str, object]:
        """What it took so far: beside the clock, CPU time tells whether others took the processor."""
        found: dict[str, object] = {"cpu_seconds": round(time.process_time() + self._others_cpu_seconds, 2)}
        if self._settings.is_on_card:
            found["card_bytes"] = torch.cuda.max_memory_reserved()
        return found

    def _catch_up(self) -> None:
        """Wait for steps that are still under way on a card."""
        if self._captured:
            for result in self._captured.drain():
                self._record(result)

    def _evaluate_if_due(self, done: int) -> None:
        is_due = done % self._eval_steps == 0 or done == self.steps
        if not is_due or self._evaluated_step == done:
            return
        self._catch_up()
        self._beat.enter("evaluate", done, self.steps)
        with self._interruptible():
            metrics = self._task.evaluate("validation")
        self._evaluated_step = done
        self._events.write("evaluated", step=done, metrics=metrics, **self._cost())
        score = metrics.get(self._task.metric)
        if score is not None:
            score = self._ranks.tell(score)  # all must call the same step the best
        if score is not None and (self._best is None or score > self._best):
            self._best, self._best_step = score, done
            self._save(done, best=True)
        if samples := getattr(self._task, "samples", None):
            self._beat.enter("evaluate", done, self.steps)
            with self._interruptible():
                self._events.write("samples", step=done, samples=self._ranks.apart(samples))

    def _save(self, done: int, *, best: bool = False, is_begun: bool = False) -> None:
        self._catch_up()
        self._beat.enter("save", done, self.steps)
        parts = {"weights": self._task.state(), "optimizer": optimizer_tensors(self._task.model, self._optimizer)}
        facts: dict[str, object] = {
            "best": self._best,
            "best_step": self._best_step,
            "evaluated_step": self._evaluated_step,
            "identity": self._identity,
        }
        self._checkpoints.save(done, parts, facts, best=best, is_begun=is_begun)
        self._saved_at, self._saved_step = time.monotonic(), done

    def _is_time_to_save(self) -> bool:
        if not self._ranks.is_first:
            return False
        made, at_stake = self._checkpoints, self._settings.save_seconds
        cost = SaveCost(
            stall_seconds=made.stall_seconds, cpu_seconds=made.cpu_seconds, write_seconds=made.write_seconds
        )
        share = share_over_budget(cost, at_stake)
        if share and not self._has_said_saving_is_dear:
            self._has_said_saving_is_dear = True
            self._events.write("saving is dear", share=round(share, 4), at_stake_seconds=at_stake)
        now = time.monotonic()
        life_seconds = self._lives.mean_seconds(now - self._began_at)
        return is_time_to_save(now - self._saved_at, self._step_seconds, cost, at_stake, life_seconds)

    def _resume(self) -> int:
        self._beat.enter("resume")
        weights = {"weights": self._task.state()}
        self._checkpoints.require_room(weights, unsaved_bytes=optimizer_bytes(self._task.model))
        loaded = self._checkpoints.load_newest()
        if loaded is None:
            return 0
        require_same(loaded.facts["identity"], self._identity, checkpoints_folder(self._run))
        self._load(loaded)
        load_optimizer_tensors(self._task.model, self._optimizer, self._own(loaded.parts.pop("optimizer")))
        self._best, self._best_step = loaded.facts["best"], loaded.facts["best_step"]
        self._evaluated_step = loaded.facts["evaluated_step"]
        self._saved_step = loaded.step
        self._events.write("resumed", step=loaded.step)
        return loaded.step

    def _load(self, loaded: Loaded) -> None:
        try:
            self._task.load_state(self._own(loaded.parts.pop("weights")))
        except (KeyError, RuntimeError, ValueError) as error:
            raise RequestError(
                "the checkpoint holds the weights of another model",
                seen=" ".join(str(error).split())[:300],
                try_next=("start a new run folder",),
            ) from error

    def _own(self, tensors: Tensors) -> Tensors:
        """What of these belongs to this rank: all, or parts where weights are dealt out."""
        if not self._ranks.in_lockstep:
            return tensors
        from holdfast.engine.sharding import parts_of

        return parts_of(tensors, self._task.model)

    def _stop(self, done: int) -> int:
        if done != self._saved_step:
            self._save(done)
        self._checkpoints.wait()
        self._events.write("stopped", step=done)
        self._ranks.wait()
        return STOPPED

    def _finish(self) -> None:
        if self._ranks.tell(self._saved_step != self.steps or self._checkpoints.has_failed):
            self._save(self.steps)
        self._checkpoints.wait()
        self._beat.enter("export", self.steps, self.steps)
        try:
            self._export()
        except (OSError, SafetensorError) as error:
            if not is_full(error):
                raise
            raise MachineError(
                "the disk is full, so the finished model cannot be written",
                seen=f"{error}; the checkpoints in {checkpoints_folder(self._run)} are whole",
                try_next=("make room and start the run again: it goes on from its last checkpoint",),
                slug="disk-full",
            ) from error
        self._ranks.wait()

    def _export(self) -> None:
        kept = self._take_kept()
        metrics = write_finished(self._task, self._settings, self._ranks, {"step": kept, "steps": self.steps})
        if metrics:
            self._beat.enter("end", self.steps, self.steps)
            self._events.write("finished", steps=self.steps, kept_step=kept, metrics=metrics, **self._cost())

    def _take_kept(self) -> int:
        """Put the weights to export into the model: those of the best evaluation, or the last; give their step."""
        if self._settings.keep == "last" or self._best_step in (-1, self.steps):
            return self.steps
        best = self._checkpoints.load_best()
        if best is None or best.step != self._best_step:
            self._events.write("best checkpoint is missing", step=self._best_step)
            return self.steps
        self._load(best)
        return best.step
