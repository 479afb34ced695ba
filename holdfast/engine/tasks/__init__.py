"""What a task gives the loop. Each task is plain PyTorch and reads alone from top to bottom."""

from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module

from holdfast.core.errors import RequestError
from holdfast.engine.order import Indices
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.settings import Settings

TASKS = {"classify": "classify", "causal": "causal", "two-tower": "two_tower"}


class Task(Protocol):
    """A model with its data, its loss and its metrics."""

    model: Module
    lengths: NDArray[np.int64]  # tokens of each training example
    meets_within_steps: bool  # ranks need each other before their parts of a step are done
    metric: str  # the one that decides which checkpoint is best; larger is better

    def begin_epoch(self, epoch: int) -> dict[str, object]:
        """Make what an epoch needs from the weights at its start; give what is worth telling.

        Called before the first step of an epoch, and not when a run resumes in the middle of one: what was made must
        be part of the state.
        """

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one optimizer step, normalised over all its examples; give the loss, on the device.

        Of several ranks each adds its part, and gives its part of the loss.
        """

    def step_arrays(self, step: int, examples: Indices) -> dict[str, NDArray[np.int64]] | None:
        """The same step as plain arrays, for a card that has it as a graph; None where it must be computed anew."""

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on a split; empty where there is no such split."""

    def report(self, split: str) -> dict[str, object]:
        """What is worth keeping of the finished model on a split: metrics, and tables or samples beside them."""

    def misjudged(self, split: str) -> list[dict[str, object]]:
        """Examples of a split that the finished model gets wrong, in words, the worst first."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep: all that is trained or made on the way, nothing that is not."""

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put them back."""

    def show(self, examples: Indices) -> object:
        """The examples in a form a person can read."""

    def export(self, folder: Path) -> None:
        """Write the model the way the ecosystem expects it."""


def load_task(settings: Settings, ranks: Ranks = ALONE) -> Task:
    """Load the model and open the data of the task that was asked for."""
    if settings.task not in TASKS:
        raise RequestError(f"there is no task {settings.task!r}", seen=f"tasks: {', '.join(TASKS)}")
    module = import_module(f"holdfast.engine.tasks.{TASKS[settings.task]}")
    task: Task = ranks.in_turns(lambda: module.load(settings, ranks))
    return task
