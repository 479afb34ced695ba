"""Where ranks meet, once a step: losses and wishes are said, then the gradients are added up.

Not torch's DistributedDataParallel, which adds gradients from hooks of one backward pass over one forward pass. Here a
rank has as many micro-batches as its texts need, maybe none; two towers go through the weights twice; hands compute
gradients that no hook sees; and embeddings have gradients of a few rows. So each rank first sums what its own texts
give, and the sums are added in buckets. What is lost is that the adding could begin during the last backward pass.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from holdfast.engine.ranks import Ranks, is_dealt_out

_BUCKET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Met:
    """What all ranks know after they met."""

    loss: float  # of the whole step
    has_left: bool  # one gave up its part of the step, so the step cannot be
    is_stopping: bool  # one was asked to stop: all do, after this step
    is_time_to_save: bool
    cpu_seconds: float  # of all ranks, so far


class Meeting:
    """The meetings of one run."""

    def __init__(self, ranks: Ranks, model: Module):
        self._ranks = ranks
        # The gradients of weights that are dealt out are added as they come.
        self._weights = [weight for weight in model.parameters() if weight.requires_grad and not is_dealt_out(weight)]
        self._with_gradient: list[Tensor] = []

    def hold(self, loss: float, *, has_left: bool, is_stopping: bool, is_time_to_save: bool) -> Met:
        """Say what this rank has; hear what all have. Only the first rank's clock counts."""
        has_gradients = [weight.grad is not None for weight in self._weights]
        numbers = (loss, has_left, is_stopping, is_time_to_save, time.process_time())
        losses, leaving, stopping, saving, cpu_seconds, *given = zip(
            *self._ranks.gather([*numbers, *has_gradients]), strict=True
        )
        # A weight that no text reached has no gradient, and is not to be decayed by the optimizer either.
        self._with_gradient = [weight for weight, has in zip(self._weights, given, strict=True) if any(has)]
        return Met(
            loss=sum(losses),
            has_left=any(leaving),
            is_stopping=any(stopping),
            is_time_to_save=bool(saving[0]),
            cpu_seconds=sum(cpu_seconds),
        )

    def add_gradients(self) -> None:
        """Give every weight the sum of its gradients over all ranks: the same bits everywhere."""
        for bucket in _buckets(self._with_gradient):
            own = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = self._ranks.add(torch.cat([gradient.reshape(-1) for gradient in own]))
            # Views of a new tensor: what the crew keeps of its own gradient must not change under it.
            for weight, part in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = part.view_as(weight)


def _buckets(weights: list[Tensor]) -> list[list[Tensor]]:
    """Neighbours of one kind, about as many as travel well together."""
    found: list[list[Tensor]] = []
    size = 0
    for weight in weights:
        if not found or size + weight.nbytes > _BUCKET_BYTES or found[-1][0].dtype != weight.dtype:
            found.append([])
            size = 0
        found[-1].append(weight)
        size += weight.nbytes
    return found
