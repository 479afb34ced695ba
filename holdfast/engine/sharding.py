"""Each rank keeps a part of every weight, for models that do not fit one: torch's FSDP2.

A layer's weights are put together while it works, and its gradients are added and dealt out as soon as they are there.
So ranks go through every forward pass together (`Ranks.in_lockstep`), whether they have texts left or not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from holdfast.engine.crew import Crew, Part
from holdfast.engine.ranks import whole

_WORK = "holdfast_work"


def as_one_call(model: nn.Module, work: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function call the parts of a model that is dealt out, as only the model itself could; give what to call."""
    setattr(model, _WORK, work)
    register_fsdp_forward_method(model, _WORK)
    found: Callable[..., Any] = getattr(model, _WORK)
    return found


def parts_of(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """This rank's parts of whole weights, or of what the optimizer keeps for them (`NAME/KEY`)."""
    weights = dict(model.named_parameters())

    def part_of(name: str, tensor: Tensor) -> Tensor:
        weight = weights.get(name.partition("/")[0])
        if not isinstance(weight, DTensor) or tensor.shape != weight.shape:
            return tensor
        # Every rank has read the file, so none needs to send anything. Cut before it is copied: a card has no room for
        # what is whole.
        mesh, rows = weight.device_mesh, tensor.chunk(weight.device_mesh.size())
        own = rows[mesh.get_local_rank()] if mesh.get_local_rank() < len(rows) else tensor[:0]
        own = own.to(weight.device, copy=True)
        shape = {"shape": weight.shape, "stride": weight.stride()}
        return DTensor.from_local(own, mesh, weight.placements, run_check=False, **shape)

    return {name: part_of(name, tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def make_whole(model: nn.Module, *, keeps: bool) -> None:
    """Put the weights together in main memory, to be written; the others' models are of no use any more."""
    found: dict[nn.Parameter, nn.Parameter] = {}
    for part in list(model.modules()):
        if isinstance(part, FSDPModule):
            part.__class__ = type(part).__bases__[1]  # what it was before it was dealt out
        for name, weight in list(part.named_parameters(recurse=False)):
            if weight not in found:  # one weight may stand in two places
                full = whole(weight.data)
                found[weight] = nn.Parameter(full.cpu(), requires_grad=weight.requires_grad) if keeps else weight
            setattr(part, name, found[weight])


class ShardedCrew(Crew):
    """One hand, which has a part of every weight. Each of the `roots` must be called as a whole."""

    def __init__(self, model: nn.Module, roots: Iterable[nn.Module], mesh: DeviceMesh):
        for root in roots:
            for part in (*_layers(root), root):
                _deal_out(part, mesh)
        super().__init__(model, 1)

    def backward(self, parts: Sequence[Part], loss_of: Callable[[Part], AbstractContextManager[Tensor]]) -> Tensor:
        """Add the gradients of the parts' losses; give the sum of the losses."""
        losses = []
        for part in parts:
            with loss_of(part) as loss:
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def add_gradients(self, parts: Sequence[Part], made_of: Callable[[Part], tuple[Tensor, Tensor]]) -> None:
        """Add what the parts' tensors do to the weights, given the gradient of each tensor."""
        for part in parts:
            made, gradient = made_of(part)
            made.backward(gradient)


def _layers(model: nn.Module) -> Sequence[nn.Module]:
    """The layers of a transformer: of all its lists of parts the one with most weights."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return list(max(lists, key=lambda found: sum(weight.numel() for weight in found.parameters()), default=()))


def _deal_out(part: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(part, mesh=mesh, reshard_after_forward=True)
    assert isinstance(part, FSDPModule)
    part.set_gradient_divide_factor(1.0)  # each rank's loss is its share of the step's: the sum is wanted, not a mean
    part.set_force_sum_reduction_for_comms(enable=True)
