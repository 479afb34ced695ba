"""The training loop, the same for every task: order, step, clip, update, evaluate, save.

Step *s* depends on the weights before it, the data and (seed, s), and on nothing else; so a run that was killed
continues from its newest checkpoint exactly as if nothing had happened. The backend computes and applies a step
(`steps.Steps`); of several ranks, the first one writes events and files. Imports no torch.
"""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from safetensors import SafetensorError

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.events import (
    BackendChanged,
    BadNumbersFound,
    BestCheckpointMissing,
    CheckpointOverBudget,
    EpochStarted,
    Evaluated,
    Resumed,
    Sampled,
    StepDone,
    TrainingFinished,
    TrainingStarted,
    TrainingStopped,
)
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import checkpoints_folder
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.bad_numbers import keep_bad_batch
from holdfast.engine.checkpoint import (
    LoadedCheckpoint,
    TrainingState,
    identity_of,
    is_full,
    require_same,
)
from holdfast.engine.data_order import DataOrder, Indices
from holdfast.engine.model_export import export_finished
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.save_schedule import failure_history, is_time_to_save, share_over_budget
from holdfast.engine.sigterm import STOPPED, Interrupted, StopSignal
from holdfast.engine.steps import StepResult, learning_rate, make_steps
from holdfast.engine.tasks import Task


class Loop:
    """One attempt at one run."""

    def __init__(self, task: Task, settings: AttemptSettings, beat: BeatWriter, events: EventLog, ranks: Ranks = ALONE):
        self._task, self._settings, self._beat, self._events = task, settings, beat, events
        self._ranks = ranks
        self._run = Path(settings.run)
        self._order = DataOrder(task.lengths, settings.batch_size, settings.seed, settings.pool_batches)
        self.steps = settings.max_steps or settings.epochs * self._order.steps_per_epoch
        self._eval_steps = settings.eval_steps or self._order.steps_per_epoch
        self._stop_signal = ranks.stop_signal or StopSignal()
        self._steps = make_steps(task, settings, ranks, self._stop_signal)
        self._checkpoints = self._steps.make_checkpoints(checkpoints_folder(self._run), events)
        self._identity = identity_of(settings)
        ranks.require_same(str(self._identity["model"]), f"the model in {settings.model}")
        self._best: float | None = None
        self._best_step, self._evaluated_step = -1, 0
        self._saved_at, self._saved_step, self._step_seconds = time.monotonic(), -1, 0.0
        self._has_reported_save_cost = False
        self._failures, self._began_at = failure_history(self._run), time.monotonic()

    def train(self) -> int:
        """Train from the newest checkpoint to the end; return the exit code."""
        with self._stop_signal.watched():
            first = self._resume()
            self._report_begin(first)
            done = first
            try:
                self._evaluate_if_due(first)
                for step in range(first, self.steps):
                    self._train_one(step, "first step" if step == first else "step")
                    done = step + 1
                    if self._steps.is_stopping:
                        raise Interrupted
                    if done < self.steps and self._is_save_due():
                        self._save(done)
                    self._evaluate_if_due(done)
                self._finish()
            except Interrupted:
                return self._stop(done)
            return 0

    def _report_begin(self, first: int) -> None:
        self._events.write(
            TrainingStarted(
                first_step=first,
                steps=self.steps,
                epoch_steps=self._order.steps_per_epoch,
                can_stop=self._ranks.are_many,  # ranks look for a stop file: after a signal torchrun soon kills them
            )
        )

    def _train_one(self, step: int, phase: str) -> None:
        begun = time.monotonic()
        is_new = False
        with self._interruptible():
            if step % self._order.steps_per_epoch == 0:
                is_new = self._begin_epoch(step)
        if is_new and self._ranks.broadcast_number(self._is_time_to_save()):
            self._save(step, is_begun=True)
        self._beat.enter(phase, step, self.steps)
        self._step(step, self._order.examples(step))
        self._step_seconds = time.monotonic() - begun

    def _begin_epoch(self, step: int) -> bool:
        """Let the task prepare an epoch; return whether it made something that belongs in a checkpoint."""
        self._beat.enter("begin epoch", step, self.steps)
        epoch = step // self._order.steps_per_epoch
        made = self._task.begin_epoch(epoch)
        self._events.write(EpochStarted(step=step, epoch=epoch, made=made))
        return bool(made)

    def _step(self, step: int, examples: Indices) -> None:
        rate = learning_rate(self._settings, step, self.steps)
        self._steps.run(step, examples, rate, self._record, self._is_time_to_save)

    def _interruptible(self) -> AbstractContextManager[None]:
        """Let a signal interrupt a single process; ranks are interrupted together, by `Ranks.independently`."""
        return nullcontext() if self._ranks.are_many else self._stop_signal.interruptible()

    def _record(self, result: StepResult) -> None:
        """Write a step's event. NaN or infinity ends the run before it reaches the weights."""
        if not math.isfinite(result.loss) or not math.isfinite(result.norm):
            batch = self._task.show(self._order.examples(result.step))
            bad = keep_bad_batch(self._run if self._ranks.is_first else None, result, batch)
            self._events.write(BadNumbersFound(reason=str(bad), step=result.step))
            self._ranks.barrier()  # the first rank that exits takes the others down
            raise bad
        rate = learning_rate(self._settings, result.step, self.steps)
        cpu_seconds, card_bytes = self._cost()
        self._events.write(
            StepDone(
                step=result.step,
                loss=result.loss,
                lr=rate,
                norm=result.norm,
                cpu_seconds=cpu_seconds,
                card_bytes=card_bytes,
            )
        )

    def _cost(self) -> tuple[float, int | None]:
        """CPU time and GPU memory so far. CPU time shows whether other processes took the cores."""
        return round(time.process_time() + self._steps.others_cpu_seconds, 2), self._steps.card_bytes()

    def _evaluate_if_due(self, done: int) -> None:
        is_due = done % self._eval_steps == 0 or done == self.steps
        if not is_due or self._evaluated_step == done:
            return
        self._steps.drain(self._record)
        self._beat.enter("evaluate", done, self.steps)
        with self._interruptible():
            metrics = self._task.evaluate("validation")
        self._evaluated_step = done
        cpu_seconds, card_bytes = self._cost()
        self._events.write(Evaluated(step=done, metrics={**metrics}, cpu_seconds=cpu_seconds, card_bytes=card_bytes))
        score = metrics.get(self._task.metric)
        if score is not None:
            score = self._ranks.broadcast_number(score)  # all must call the same step the best
        if score is not None and (self._best is None or score > self._best):
            self._best, self._best_step = score, done
            self._save(done, best=True)
        if samples := getattr(self._task, "samples", None):
            self._beat.enter("evaluate", done, self.steps)
            with self._interruptible():
                self._events.write(Sampled(step=done, samples=tuple(self._ranks.independently(samples))))

    def _save(self, done: int, *, best: bool = False, is_begun: bool = False) -> None:
        self._steps.drain(self._record)
        self._beat.enter("save", done, self.steps)
        parts = {"weights": self._task.state(), "optimizer": self._steps.optimizer_tensors()}
        state = TrainingState(
            best=self._best,
            best_step=self._best_step,
            evaluated_step=self._evaluated_step,
            identity=self._identity,
            backend=self._steps.backend,
        )
        self._checkpoints.save(done, parts, state, best=best, is_begun=is_begun)
        self._saved_at, self._saved_step = time.monotonic(), done

    def _is_save_due(self) -> bool:
        return self._steps.is_save_due if self._steps.are_agreed else self._is_time_to_save()

    def _is_time_to_save(self) -> bool:
        if not self._ranks.is_first:
            return False
        cost, at_stake = self._checkpoints.cost, self._settings.save_seconds
        share = share_over_budget(cost, at_stake)
        if share and not self._has_reported_save_cost:
            self._has_reported_save_cost = True
            self._events.write(CheckpointOverBudget(share=round(share, 4), at_stake_seconds=at_stake))
        now = time.monotonic()
        mtbf_seconds = self._failures.mtbf_seconds(now - self._began_at)
        return is_time_to_save(now - self._saved_at, self._step_seconds, cost, at_stake, mtbf_seconds)

    def _resume(self) -> int:
        self._beat.enter("resume")
        weights = {"weights": self._task.state()}
        self._checkpoints.require_room(weights, unsaved_bytes=self._steps.optimizer_bytes())
        loaded = self._checkpoints.load_newest()
        if loaded is None:
            return 0
        require_same(loaded.state.identity, self._identity, checkpoints_folder(self._run))
        self._load(loaded)
        self._steps.load_optimizer_tensors(self._steps.own(loaded.parts.pop("optimizer")))
        self._best, self._best_step = loaded.state.best, loaded.state.best_step
        self._evaluated_step = loaded.state.evaluated_step
        self._saved_step = loaded.step
        self._events.write(Resumed(step=loaded.step))
        if (then := loaded.state.backend) != self._steps.backend:
            self._events.write(BackendChanged(step=loaded.step, before=then, now=self._steps.backend))
        return loaded.step

    def _load(self, loaded: LoadedCheckpoint) -> None:
        try:
            self._task.load_state(self._steps.own(loaded.parts.pop("weights")))
        except (KeyError, RuntimeError, ValueError) as error:
            raise RequestError(
                "the checkpoint holds the weights of another model",
                found=" ".join(str(error).split())[:300],
                try_next=("start a new run folder",),
            ) from error

    def _stop(self, done: int) -> int:
        if done != self._saved_step:
            self._save(done)
        self._checkpoints.wait()
        self._events.write(TrainingStopped(step=done))
        self._ranks.barrier()
        return STOPPED

    def _finish(self) -> None:
        if self._ranks.broadcast_number(self._saved_step != self.steps or self._checkpoints.has_failed):
            self._save(self.steps)
        self._checkpoints.wait()
        if not self._settings.export:
            self._ranks.barrier()
            return
        self._beat.enter("export", self.steps, self.steps)
        try:
            self._export()
        except (OSError, SafetensorError) as error:
            if not is_full(error):
                raise
            raise MachineError(
                "the disk is full, so the finished model cannot be written",
                found=f"{error}; the checkpoints in {checkpoints_folder(self._run)} are intact",
                try_next=("free some disk space, then resume the run: it continues from its last checkpoint",),
                slug="disk-full",
            ) from error
        self._ranks.barrier()

    def _export(self) -> None:
        kept = self._load_kept()
        export_finished(self._task, self._settings, self._ranks, self._steps, kept_step=kept, steps=self.steps)
        if self._ranks.is_first:
            self._beat.enter("end", self.steps, self.steps)
            cpu_seconds, card_bytes = self._cost()
            self._events.write(
                TrainingFinished(steps=self.steps, kept_step=kept, cpu_seconds=cpu_seconds, card_bytes=card_bytes)
            )

    def _load_kept(self) -> int:
        """Load the weights to export, those of the best evaluation or the last ones, and return their step."""
        if self._settings.keep == "last" or self._best_step in (-1, self.steps):
            return self.steps
        best = self._checkpoints.load_best()
        if best is None or best.step != self._best_step:
            self._events.write(BestCheckpointMissing(step=self._best_step))
            return self.steps
        self._load(best)
        return best.step
