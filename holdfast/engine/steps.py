"""What a backend gives the loop: how a step is computed and applied, and how its tensors are saved. Imports no torch.

`torch_steps` is the backend for CPU, CUDA and MPS, `mlx` the one for Apple silicon.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.event_log import EventLog
from holdfast.core.plan import MLX
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.checkpoint import Checkpoints, Tensors
from holdfast.engine.data_order import Indices
from holdfast.engine.ranks import Ranks
from holdfast.engine.sigterm import StopSignal


@dataclass(frozen=True, slots=True)
class StepResult:
    """The loss and gradient norm of a step."""

    step: int
    loss: float
    norm: float


Record = Callable[[StepResult], None]  # raises where a result is not finite


class Steps(Protocol):
    """Computes and applies the optimizer steps of one attempt."""

    backend: str
    are_agreed: bool  # whether ranks agree in each step on what follows it; the two flags below say what
    is_stopping: bool
    is_save_due: bool
    others_cpu_seconds: float  # of the other ranks

    def run(
        self, step: int, examples: Indices, rate: float, record: Record, is_time_to_save: Callable[[], bool]
    ) -> None:
        """Do one step. Its result is recorded before the weights change, or later where a GPU replays steps."""

    def drain(self, record: Record) -> None:
        """Wait for steps that still run on a GPU."""

    def make_checkpoints(self, folder: Path, events: EventLog) -> Checkpoints:
        """The checkpoints of the run, for this process."""

    def own(self, tensors: Tensors) -> Tensors:
        """The part of a checkpoint's tensors that this process holds."""

    def optimizer_tensors(self) -> Tensors:
        """The optimizer's state by weight, as checkpoints hold it."""

    def load_optimizer_tensors(self, tensors: Tensors) -> None:
        """Restore it."""

    def optimizer_bytes(self) -> int:
        """The size of the optimizer's state, even before the first step."""

    def card_bytes(self) -> int | None:
        """The most GPU memory reserved so far; None without a GPU that has its own."""

    def unshard(self) -> None:
        """Gather the weights in the first process, to be exported."""


def make_steps(task: Any, settings: AttemptSettings, ranks: Ranks, stop_signal: StopSignal) -> Steps:
    """The backend for the attempt's device."""
    made: Any
    if settings.device == MLX:
        from holdfast.engine.mlx.mlx_steps import MlxSteps

        made = MlxSteps(task, settings, stop_signal)
    else:
        from holdfast.engine.torch_steps import TorchSteps

        made = TorchSteps(task, settings, ranks, stop_signal)
    steps: Steps = made
    return steps


def learning_rate(settings: AttemptSettings, step: int, steps: int) -> float:
    """Linear warm-up, then decay to zero as the schedule says."""
    warmup = math.ceil(settings.warmup_ratio * steps)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    if settings.schedule == "constant":
        return settings.lr
    done = (step - warmup) / max(1, steps - warmup)
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
    return settings.lr * (1 - done)
