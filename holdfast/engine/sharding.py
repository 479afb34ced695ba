"""Sharded weights (torch's FSDP2), for models that do not fit on one rank.

A layer's weights are gathered while it works, and its gradients are reduced and sharded as soon as they exist. So all
ranks make every forward pass together (`Ranks.in_lockstep`), whether they have texts left or not.

FSDP takes half a second to import, so the functions here import it when they need it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from holdfast.engine.distributed_ranks import full_tensor
from holdfast.engine.fast.thread_pool import GradientThreads, Part
from holdfast.engine.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_METHOD = "holdfast_work"


def make_gradient_threads(model: nn.Module, threads: int, ranks: Ranks, roots: Iterable[nn.Module]) -> GradientThreads:
    """How this rank computes gradients: on worker threads, or, where the weights of the roots are sharded, on one."""
    return ShardedGradients(model, roots, ranks.mesh) if ranks.in_lockstep else GradientThreads(model, threads)


class ShardedGradients(GradientThreads):
    """Gradients of sharded weights, on one thread. Each of the `roots` must be called as a whole."""

    def __init__(self, model: nn.Module, roots: Iterable[nn.Module], mesh: "DeviceMesh"):
        for root in roots:
            for part in (*_layers(root), root):
                _shard(part, mesh)
        super().__init__(model, 1)

    def backward(self, parts: Sequence[Part], loss_of: Callable[[Part], AbstractContextManager[Tensor]]) -> Tensor:
        """Add the gradients of the parts' losses and return the sum of the losses."""
        losses = []
        for part in parts:
            with loss_of(part) as loss:
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def add_gradients(self, parts: Sequence[Part], output_of: Callable[[Part], tuple[Tensor, Tensor]]) -> None:
        """Add what the parts' outputs do to the weights; `output_of` gives an output and its gradient."""
        for part in parts:
            output, gradient = output_of(part)
            output.backward(gradient)


def as_one_call(model: nn.Module, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of `work` that may call the submodules of a sharded model, as only its forward could."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    setattr(model, _METHOD, work)
    register_fsdp_forward_method(model, _METHOD)
    found: Callable[..., Any] = getattr(model, _METHOD)
    return found


def own_shards(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """This rank's shards of full weights, or of the optimizer's state for them (`NAME/KEY`)."""
    from torch.distributed.tensor import DTensor

    weights = dict(model.named_parameters())

    def shard_of(name: str, tensor: Tensor) -> Tensor:
        weight = weights.get(name.partition("/")[0])
        if not isinstance(weight, DTensor) or tensor.shape != weight.shape:
            return tensor
        # Every rank has read the file, so nothing needs to be sent. The tensor is cut before it is copied, because a
        # GPU has no room for the full one.
        mesh, rows = weight.device_mesh, tensor.chunk(weight.device_mesh.size())
        own = rows[mesh.get_local_rank()] if mesh.get_local_rank() < len(rows) else tensor[:0]
        own = own.to(weight.device, copy=True)
        shape = {"shape": weight.shape, "stride": weight.stride()}
        return DTensor.from_local(own, mesh, weight.placements, run_check=False, **shape)

    return {name: shard_of(name, tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def unshard(model: nn.Module, *, keeps: bool) -> None:
    """Gather the full weights in main memory, to be exported. Ranks that do not keep them cannot use the model again.

    `fully_shard` swaps a module's class for a subclass of FSDPModule and that class. There is no public way back, so
    the class is swapped back by hand: what is exported must be an ordinary model again.
    """
    from torch.distributed.fsdp import FSDPModule

    found: dict[nn.Parameter, nn.Parameter] = {}
    for part in list(model.modules()):
        if isinstance(part, FSDPModule):
            part.__class__ = type(part).__bases__[1]  # (FSDPModule, the original class)
        for name, weight in list(part.named_parameters(recurse=False)):
            if weight not in found:  # tied weights appear in two modules
                full = full_tensor(weight.data)
                found[weight] = nn.Parameter(full.cpu(), requires_grad=weight.requires_grad) if keeps else weight
            setattr(part, name, found[weight])


def _layers(model: nn.Module) -> Sequence[nn.Module]:
    """The layers of a transformer: the module list that holds the most weights."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return list(max(lists, key=lambda found: sum(weight.numel() for weight in found.parameters()), default=()))


def _shard(part: nn.Module, mesh: "DeviceMesh") -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    fully_shard(part, mesh=mesh, reshard_after_forward=True)
    assert isinstance(part, FSDPModule)
    part.set_gradient_divide_factor(1.0)  # a rank's loss is its share of the step's, so gradients are summed
    part.set_force_sum_reduction_for_comms(enable=True)
