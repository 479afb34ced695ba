"""What a task gives the loop. Each task is one file that can be read alone, from top to bottom."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.plan import MLX
from holdfast.core.records import Mistakes
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.data_order import Indices
from holdfast.engine.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

TASKS = {"classify": "classify", "causal": "causal", "two-tower": "two_tower"}


class Task(Protocol):
    """A model with its data, its loss and its metrics. A backend's tasks also compute gradients."""

    lengths: NDArray[np.int64]  # tokens of each training example
    metric: str  # decides which checkpoint is best; larger is better

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Make what an epoch needs from the weights at its start; return what the epoch's event should report.

        Called before the first step of an epoch, but not when a run resumes in the middle of one: what was made must
        be part of the state.
        """

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on a split; empty where there is no such split."""

    def report(self, split: str) -> dict[str, object]:
        """What to record about the finished model on a split: metrics, and tables or samples."""

    def mistakes(self, split: str) -> Mistakes:
        """Examples of a split that the finished model gets wrong, as text, worst first."""

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must hold: what is trained, and what was made during training."""

    def load_state(self, tensors: dict[str, Any]) -> None:
        """Restore what `state` returned."""

    def show(self, examples: Indices) -> object:
        """The examples in readable form, for the file that keeps a bad batch."""

    def export(self, folder: Path) -> None:
        """Write the model in the format of its ecosystem."""


class TorchTask(Task, Protocol):
    """A task of the torch backend."""

    model: "Module"
    needs_collectives: bool  # ranks exchange data while they compute their parts of a step

    def forward_backward(self, step: int, examples: Indices) -> "Tensor":
        """Add the gradient of one optimizer step, normalized over all its examples; return the loss, on the device.

        With several ranks, each adds its part of the gradient and returns its part of the loss.
        """

    def step_arrays(self, step: int, examples: Indices) -> dict[str, NDArray[np.int64]] | None:
        """The same step as plain arrays, to replay as a CUDA graph; None where it is too large for one."""


def load_task(settings: AttemptSettings, ranks: Ranks = ALONE) -> Any:
    """Load the model and open the data of the requested task, for the backend of the attempt's device."""
    if settings.task not in TASKS:
        raise RequestError(f"unknown task {settings.task!r}", found=f"tasks: {', '.join(TASKS)}")
    if settings.device == MLX:
        return import_module(f"holdfast.engine.mlx.mlx_{TASKS[settings.task]}").load(settings)
    module = import_module(f"holdfast.engine.tasks.{TASKS[settings.task]}")
    return ranks.one_at_a_time(lambda: module.load(settings, ranks))
