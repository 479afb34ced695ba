"""Optimizer steps with MLX: gradients of short micro-batches, clipping, AdamW; and its tensors in checkpoints."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

from holdfast.core.event_log import EventLog
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.checkpoint import Checkpoints, Tensors
from holdfast.engine.data_order import Indices
from holdfast.engine.mlx.mlx_adamw import NamedAdamW, Weights, clipped, norm_of
from holdfast.engine.sigterm import StopSignal
from holdfast.engine.steps import Record, StepResult
from holdfast.engine.tasks import Task


class MlxTask(Task, Protocol):
    """A task of the MLX backend."""

    weights: Weights  # that are trained, under the names of the torch backend

    def loss_and_gradients(self, step: int, examples: Indices) -> tuple[mx.array, Weights]:
        """The loss of one step, normalized over all its examples, and its gradient, both evaluated.

        Each micro-batch is evaluated by itself: a Mac's display watchdog ends long command buffers
        (ml-explore/mlx#3267).
        """


class MlxSteps:
    """The optimizer steps of one attempt. A process of MLX is always alone."""

    backend = "mlx"
    are_agreed = is_stopping = is_save_due = False
    others_cpu_seconds = 0.0

    def __init__(self, task: MlxTask, settings: AttemptSettings, stop_signal: StopSignal):
        self._task, self._max_norm, self._stop_signal = task, settings.max_grad_norm, stop_signal
        self._optimizer = NamedAdamW(settings.weight_decay)

    def run(
        self, step: int, examples: Indices, rate: float, record: Record, is_time_to_save: Callable[[], bool]
    ) -> None:
        """Do one step. Its result is recorded before the weights change."""
        with self._stop_signal.interruptible():
            loss, gradients = self._task.loss_and_gradients(step, examples)
            norm = norm_of(gradients).item()
        record(StepResult(step, float(loss.item()), float(norm)))
        gradients = clipped(gradients, float(norm), self._max_norm)
        self._task.weights.update(self._optimizer.updated(self._task.weights, gradients, rate))
        mx.async_eval(self._task.weights, self._optimizer.arrays())

    def drain(self, record: Record) -> None:
        """Every step is recorded when it is done."""

    def make_checkpoints(self, folder: Path, events: EventLog) -> Checkpoints:
        """The checkpoints of the run."""
        return Checkpoints(folder, events, MlxFiles())

    def own(self, tensors: Tensors) -> Tensors:
        """All tensors."""
        return tensors

    def optimizer_tensors(self) -> Tensors:
        """The optimizer's state by weight, as checkpoints hold it."""
        return self._optimizer.tensors()

    def load_optimizer_tensors(self, tensors: Tensors) -> None:
        """Restore it."""
        self._optimizer.load_tensors(tensors)

    def optimizer_bytes(self) -> int:
        """The size of the optimizer's state, even before the first step."""
        return sum(2 * weight.nbytes for weight in self._task.weights.values())

    def card_bytes(self) -> int | None:
        """None: Apple GPUs share the machine's memory."""
        return None

    def unshard(self) -> None:
        """The weights are all here."""


class MlxFiles:
    """MLX arrays as safetensors files."""

    def copy(self, parts: Mapping[str, Tensors], kept: dict[str, Tensors]) -> None:
        """Copy into buffers of main memory that are kept: MLX must not be used from the writer's thread."""
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                content, buffers = np.asarray(tensor), kept[part]
                if name not in buffers or buffers[name].shape != content.shape:
                    buffers[name] = np.empty_like(content)
                np.copyto(buffers[name], content)

    def write(self, copies: Tensors, path: Path) -> None:
        """Write such copies."""
        save_file(copies, path)

    def read(self, path: Path) -> Tensors:
        """The arrays of a file, read when they are used."""
        found = mx.load(str(path))
        assert isinstance(found, dict)
        return found
