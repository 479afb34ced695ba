"""Worker threads that share a micro-batch: each computes the gradient of some of its texts on its own core.

Most calls of a step are too small to be worth spreading over cores: two cores that each work on half of the texts do
a step of MiniLM in 280 ms where two cores that share every call need 410 ms. The gradients are added in the order of
the parts, whichever thread finished first, so the same step always gives the same sum.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

Part = TypeVar("Part")
Found = TypeVar("Found")

Gradients = tuple[Tensor | None, ...]

_MAX_GRADIENT_BYTES = 512 << 20  # models with more weights make calls that are large enough to share
_MAX_WORKERS = 4  # each holds a separate gradient; further threads help the workers


class GradientThreads:
    """Computes gradients part by part, on several threads where that is faster."""

    def __init__(self, model: nn.Module, threads: int):
        self._model = model
        self._sparse: dict[Tensor, _SparseGradient] = {}
        size = sum(weight.nbytes for weight in self._weights())
        self.workers = min(threads, _MAX_WORKERS) if size <= _MAX_GRADIENT_BYTES else 1
        self._pool = worker_pool(self.workers, threads // self.workers)

    def try_out(self, part: Part, loss_of: Callable[[Part], AbstractContextManager[Tensor]]) -> None:
        """Use one worker only if a part's loss draws from torch's generator, which all threads share.

        Some models apply dropout by a function, and not by a module that could be replaced.
        """
        if self.workers == 1:
            return
        self._model.train()
        before = torch.get_rng_state()
        with torch.no_grad(), loss_of(part):
            if not torch.equal(before, torch.get_rng_state()):
                self.workers = 1
        torch.set_rng_state(before)

    def backward(self, parts: Sequence[Part], loss_of: Callable[[Part], AbstractContextManager[Tensor]]) -> Tensor:
        """Add the gradients of the parts' losses and return the sum of the losses.

        The context of `loss_of` stays open during the backward pass.
        """
        weights = self._weights()

        def work(part: Part) -> tuple[Tensor, Gradients]:
            with loss_of(part) as loss:
                return loss.detach(), torch.autograd.grad(loss, weights, allow_unused=True)

        losses, gradients = zip(*self.map(work, parts), strict=True)
        for of_part in gradients:
            self._add(weights, of_part)
        return torch.stack(losses).sum()

    def add_gradients(self, parts: Sequence[Part], output_of: Callable[[Part], tuple[Tensor, Tensor]]) -> None:
        """Add what the parts' outputs do to the weights; `output_of` gives an output and its gradient."""
        weights = self._weights()

        def work(part: Part) -> Gradients:
            output, gradient = output_of(part)
            return torch.autograd.grad(output, weights, gradient, allow_unused=True)

        for of_part in self.map(work, parts):
            self._add(weights, of_part)

    def map(self, work: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
        """Do the work on each part; results come in the order of the parts."""
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
                if weight not in self._sparse:
                    self._sparse[weight] = _SparseGradient(weight)
                self._sparse[weight].add(gradient)
            elif weight.grad is None:
                weight.grad = gradient
            else:
                sums.append(weight.grad)
                more.append(gradient)
        if sums:
            torch._foreach_add_(sums, more)


@cache
def worker_pool(workers: int, threads_each: int = 1) -> ThreadPoolExecutor:
    """A pool of this many workers; torch uses at most `threads_each` cores in each of them."""
    return ThreadPoolExecutor(workers, "worker", initializer=torch.set_num_threads, initargs=(threads_each,))


class _SparseGradient:
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
