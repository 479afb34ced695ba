"""AdamW on a CPU, where each worker thread updates separate weights.

The fused step goes through one weight after the other, and wakes and awaits all cores for each of them. Here every
worker updates some of the weights alone. Which worker has which weight changes no digit.
"""

from typing import Any

import torch
from torch import Tensor

from holdfast.engine.fast.thread_pool import worker_pool


class ScaledAdamW(torch.optim.AdamW):
    """Fused AdamW with the two attributes that its kernel reads."""

    grad_scale: Tensor | None = None  # what the next step divides the gradients by
    found_inf: Tensor | None = None


class ThreadedAdamW(ScaledAdamW):
    """One optimizer whose state does not depend on the number of workers."""

    def __init__(self, groups: list[dict[str, Any]], rate: Tensor, workers: int):
        super().__init__(groups, lr=rate, fused=True)
        self._pool = worker_pool(workers)
        self._shares = [self._share_of(weights) for weights in _shares(groups, workers)]

    def step(self, closure: Any = None) -> Any:
        """Update the weights."""
        assert closure is None
        for share in self._shares:
            share.grad_scale, share.found_inf = self.grad_scale, self.found_inf
        list(self._pool.map(lambda share: share.step(), self._shares))

    def norm(self) -> Tensor:
        """The norm of all gradients as one vector."""
        found = {weight: norm for norms in self._pool.map(_norms, self._shares) for weight, norm in norms.items()}
        ordered = [found[weight] for group in self.param_groups for weight in group["params"] if weight in found]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(ordered))
        return norm

    def _share_of(self, weights: set[Tensor]) -> ScaledAdamW:
        groups = [group | {"params": [one for one in group["params"] if one in weights]} for group in self.param_groups]
        share = ScaledAdamW([group for group in groups if group["params"]], lr=self.defaults["lr"], fused=True)
        share.state = self.state
        return share


def _shares(groups: list[dict[str, Any]], workers: int) -> list[set[Tensor]]:
    """The largest weights first, each to the worker with the least so far."""
    shares: list[set[Tensor]] = [set() for _ in range(workers)]
    sizes = [0] * workers
    for weight in sorted((one for group in groups for one in group["params"]), key=lambda one: -one.numel()):
        least = sizes.index(min(sizes))
        shares[least].add(weight)
        sizes[least] += weight.numel()
    return [share for share in shares if share]


def _norms(share: torch.optim.AdamW) -> dict[Tensor, Tensor]:
    weights = [weight for group in share.param_groups for weight in group["params"] if weight.grad is not None]
    return dict(zip(weights, torch._foreach_norm([weight.grad for weight in weights]) if weights else (), strict=True))
