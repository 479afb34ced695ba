"""Optimizer steps with torch: one process, captured steps on CUDA, or several ranks that share each step.

Ranks each do their part of a step and exchange losses and gradients before it counts (`StepAllReduce`).
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from holdfast.core.event_log import EventLog
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.checkpoint import Checkpoints, Tensors
from holdfast.engine.data_order import Indices, step_seed
from holdfast.engine.distributed_ranks import StepAllReduce
from holdfast.engine.fast.captured import make_captured
from holdfast.engine.fast.graph_cache import GraphCache
from holdfast.engine.fast.threaded_adamw import ThreadedAdamW
from holdfast.engine.optim import (
    clip_gradients,
    clip_in_step,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_bytes,
    optimizer_tensors,
)
from holdfast.engine.rank_checkpoints import make_checkpoints
from holdfast.engine.ranks import Ranks
from holdfast.engine.sharding import own_shards, unshard
from holdfast.engine.sigterm import Interrupted, StopSignal
from holdfast.engine.steps import Record, StepResult
from holdfast.engine.tasks import TorchTask


class TorchSteps:
    """The optimizer steps of one attempt."""

    backend = "torch"

    def __init__(self, task: TorchTask, settings: AttemptSettings, ranks: Ranks, stop_signal: StopSignal):
        self._task, self._settings, self._ranks, self._stop_signal = task, settings, ranks, stop_signal
        self._optimizer = make_optimizer(task.model, settings)
        self._captured = None if ranks.are_many else make_captured(task, settings, self._optimizer)
        self._graph_cache = GraphCache() if settings.is_on_mps else None
        self._all_reduce = StepAllReduce(ranks, task.model) if ranks.are_many else None
        self.are_agreed = ranks.are_many
        self.is_stopping, self.is_save_due = False, False
        self.others_cpu_seconds = 0.0

    def run(
        self, step: int, examples: Indices, rate: float, record: Record, is_time_to_save: Callable[[], bool]
    ) -> None:
        """Do one step. Its result is recorded before the weights change, or later where a GPU replays steps."""
        for group in self._optimizer.param_groups:
            group["lr"].fill_(rate)
        arrays = self._task.step_arrays(step, examples) if self._captured else None
        if self._captured and arrays:
            if not self._task.model.training:
                self._task.model.train()
            for result in self._captured.run(step, arrays, step_seed(self._settings.seed, step)):
                record(result)
            return
        self.drain(record)
        if self._all_reduce:
            loss = self._reduced_loss(self._all_reduce, step, examples, is_time_to_save())
        else:
            loss = self._loss(step, examples)
        norm = float(self._clip())
        record(StepResult(step, loss, norm))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._graph_cache:
            self._graph_cache.after_step(step)

    def drain(self, record: Record) -> None:
        """Wait for captured steps that are still running on the GPU."""
        for result in self._captured.drain() if self._captured else ():
            record(result)

    def make_checkpoints(self, folder: Path, events: EventLog) -> Checkpoints:
        """The checkpoints of the run, for this rank."""
        return make_checkpoints(folder, events, self._ranks)

    def own(self, tensors: Tensors) -> Tensors:
        """The tensors of this rank: all of them, or its shards where weights are sharded."""
        return own_shards(tensors, self._task.model) if self._ranks.in_lockstep else tensors

    def optimizer_tensors(self) -> Tensors:
        """The optimizer's state by weight, as checkpoints hold it."""
        return optimizer_tensors(self._task.model, self._optimizer)

    def load_optimizer_tensors(self, tensors: Tensors) -> None:
        """Restore it."""
        load_optimizer_tensors(self._task.model, self._optimizer, tensors)

    def optimizer_bytes(self) -> int:
        """The size of the optimizer's state, even before the first step."""
        return optimizer_bytes(self._task.model)

    def card_bytes(self) -> int | None:
        """The most GPU memory reserved so far."""
        return torch.cuda.max_memory_reserved() if self._settings.is_on_cuda else None

    def unshard(self) -> None:
        """Gather the weights in the first rank, to be exported."""
        if self._ranks.in_lockstep:
            unshard(self._task.model, keeps=self._ranks.is_first)

    def _loss(self, step: int, examples: Indices) -> float:
        """Compute this process's part of the step and of its loss."""
        has_collectives = self._ranks.are_many and (self._task.needs_collectives or self._ranks.in_lockstep)
        with nullcontext() if has_collectives else self._stop_signal.interruptible():
            return float(self._task.forward_backward(step, examples))

    def _reduced_loss(self, all_reduce: StepAllReduce, step: int, examples: Indices, is_time_to_save: bool) -> float:
        """Compute the step together with the other ranks: the full loss, with the full gradient in the weights."""
        loss, is_interrupted = 0.0, False
        try:
            loss = self._loss(step, examples)
        except Interrupted:
            is_interrupted = True
        agreed = all_reduce.agree(
            loss,
            is_interrupted=is_interrupted,
            is_stopping=self._ranks.is_asked_to_stop(),
            is_time_to_save=is_time_to_save,
        )
        if agreed.is_interrupted:
            self._optimizer.zero_grad(set_to_none=True)
            raise Interrupted
        all_reduce.add_gradients()
        self.is_stopping, self.is_save_due = agreed.is_stopping, agreed.is_time_to_save
        self.others_cpu_seconds = agreed.cpu_seconds - time.process_time()
        return agreed.loss

    def _clip(self) -> Tensor:
        max_norm = self._settings.max_grad_norm
        if isinstance(self._optimizer, ThreadedAdamW):
            return clip_in_step(self._optimizer, max_norm)
        return clip_gradients(self._task.model.parameters(), max_norm)
