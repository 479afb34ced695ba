"""Hands that share a micro-batch: each takes some of its texts, and computes their gradient with a core of its own.

Most calls of a step are too small to be worth spreading over cores: two cores that each work on half of the texts do
a step of MiniLM in 280 ms where two that share every call need 410. The gradients are added in the order of the
parts, whoever was done first, so the same step always gives the same sum.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from holdfast.engine.ranks import Ranks

Part = TypeVar("Part")
Found = TypeVar("Found")

Gradients = tuple[Tensor | None, ...]

_MOST_BYTES = 512 << 20  # of a gradient: where weights are many, calls are large enough to be shared
_MOST_HANDS = 4  # each holds a gradient of its own; further threads help the hands


def make_crew(model: nn.Module, threads: int, ranks: Ranks, roots: Iterable[nn.Module]) -> "Crew":
    """The hands of this process; in lockstep with others it has one, and a part of every weight of the roots."""
    if not ranks.in_lockstep:
        return Crew(model, threads)
    from holdfast.engine.sharding import ShardedCrew  # half a second of imports

    return ShardedCrew(model, roots, ranks.mesh)


class Crew:
    """The hands of one process. With one hand the caller's thread does it all."""

    def __init__(self, model: nn.Module, threads: int):
        self._model = model
        self._tables: dict[Tensor, _Table] = {}
        size = sum(weight.nbytes for weight in self._weights())
        self.hands = min(threads, _MOST_HANDS) if size <= _MOST_BYTES else 1
        self._pool = hands_pool(self.hands, threads // self.hands)

    def try_out(self, part: Part, loss_of: Callable[[Part], AbstractContextManager[Tensor]]) -> None:
        """Stay with one hand where a part's loss draws from torch's generator, which threads would share.

        Some models drop values by a function, and not by a module that could be replaced.
        """
        if self.hands == 1:
            return
        self._model.train()
        before = torch.get_rng_state()
        with torch.no_grad(), loss_of(part):
            if not torch.equal(before, torch.get_rng_state()):
                self.hands = 1
        torch.set_rng_state(before)

    def backward(self, parts: Sequence[Part], loss_of: Callable[[Part], AbstractContextManager[Tensor]]) -> Tensor:
        """Add the gradients of the parts' losses; give the sum of the losses. `loss_of` holds during the way back."""
        weights = self._weights()

        def work(part: Part) -> tuple[Tensor, Gradients]:
            with loss_of(part) as loss:
                return loss.detach(), torch.autograd.grad(loss, weights, allow_unused=True)

        losses, gradients = zip(*self.map(work, parts), strict=True)
        for of_part in gradients:
            self._add(weights, of_part)
        return torch.stack(losses).sum()

    def add_gradients(self, parts: Sequence[Part], made_of: Callable[[Part], tuple[Tensor, Tensor]]) -> None:
        """Add what the parts' tensors do to the weights, given the gradient of each tensor."""
        weights = self._weights()

        def work(part: Part) -> Gradients:
            made, gradient = made_of(part)
            return torch.autograd.grad(made, weights, gradient, allow_unused=True)

        for of_part in self.map(work, parts):
            self._add(weights, of_part)

    def map(self, work: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
        """Do the work on each part; what is found comes in the order of the parts."""
        if len(parts) == 1:
            return [work(parts[0])]
        return list(self._pool.map(work, parts))

    def _weights(self) -> list[Tensor]:
        return [weight for weight in self._model.parameters() if weight.requires_grad]

    def _add(self, weights: list[Tensor], gradients: Gradients) -> None:
        """Add gradients to those that the weights have."""
        sums, more = [], []
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None:
                continue
            if gradient.is_sparse:
                if weight not in self._tables:
                    self._tables[weight] = _Table(weight)
                self._tables[weight].add(gradient)
            elif weight.grad is None:
                weight.grad = gradient
            else:
                sums.append(weight.grad)
                more.append(gradient)
        if sums:
            torch._foreach_add_(sums, more)


@cache
def hands_pool(hands: int, threads_each: int = 1) -> ThreadPoolExecutor:
    """The threads of so many hands; a thread's calls use no more cores than it is given."""
    return ThreadPoolExecutor(hands, "hand", initializer=torch.set_num_threads, initargs=(threads_each,))


class _Table:
    """The gradient of an embedding: zero but for the rows of the step, so only those are written and cleared."""

    def __init__(self, weight: Tensor):
        self._weight, self._sum = weight, torch.zeros_like(weight)
        self._used: list[Tensor] = []

    def add(self, gradient: Tensor) -> None:
        if self._weight.grad is None:  # a new step
            for used in self._used:
                self._sum.index_fill_(0, used, 0)
            self._used.clear()
            self._weight.grad = self._sum
        used, rows = gradient._indices()[0], gradient._values()
        self._sum.index_copy_(0, used, self._sum.index_select(0, used).add_(rows))
        self._used.append(used)
