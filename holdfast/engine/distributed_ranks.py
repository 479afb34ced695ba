"""Several processes that train together, as torchrun starts them, and what they exchange.

Ranks work on parts of the same step, so data order, dropout and effective batch size are those of one process.
Whatever they must agree on (when to save, whether to stop) is decided by one rank and known to all before any of them
acts on it: two ranks that wait in different collectives wait forever.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from holdfast.core.errors import MachineError, RequestError
from holdfast.engine.rank_info import RankInfo
from holdfast.engine.ranks import Found, Ranks
from holdfast.engine.sigterm import Interrupted, StopSignal

# A rank waits while another one evaluates, writes the model or reads a slow disk. The supervisor decides from stacks
# and processor time whether it waits in vain; a limit here would end healthy runs and blame the rank that waited.
_COLLECTIVE_TIMEOUT = timedelta(hours=24)
_STOP_FILE_SECONDS = 1.0  # between two looks at the disk
_BUCKET_BYTES = 64 << 20


class DistributedRanks(Ranks):
    """Several processes. Small numbers go over gloo, even where tensors are on GPUs and go over NCCL."""

    def __init__(self, info: RankInfo, device: str, stop_file: Path, *, in_lockstep: bool = False):
        from torch import distributed

        self.rank, self.size, self.in_lockstep = info.rank, info.size, in_lockstep
        self._is_first_on_machine = info.local_rank == 0
        self.stop_signal = StopSignal()
        self._stop_file, self._looked_at = stop_file, 0.0
        is_cuda = device.startswith("cuda")
        if is_cuda:
            torch.cuda.set_device(device)
        self._distributed = distributed
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            timeout=_COLLECTIVE_TIMEOUT,
            device_id=torch.device(device) if is_cuda else None,
        )
        if in_lockstep:
            from torch.distributed.device_mesh import init_device_mesh

            self.mesh = init_device_mesh("cuda" if is_cuda else "cpu", (info.size,))

    def independently(self, work: Callable[[], Found]) -> Found:
        """Do work without collectives. If any rank is asked to stop meanwhile, all are interrupted after it."""
        if self.in_lockstep:
            return work()
        found: list[Found] = []
        try:
            assert self.stop_signal is not None
            with self.stop_signal.interruptible():
                found.append(work())
        except Interrupted:
            found.clear()
        if any(was_interrupted for (was_interrupted,) in self.all_gather([not found])):
            raise Interrupted
        return found[0]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Replace the tensor by its sum over all ranks."""
        self._distributed.all_reduce(tensor)
        return tensor

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank."""
        all_numbers = torch.zeros(self.size, len(numbers), dtype=torch.float64)
        self._distributed.all_gather_into_tensor(
            all_numbers, torch.tensor([list(map(float, numbers))], dtype=torch.float64)
        )
        found: list[list[float]] = all_numbers.tolist()
        return found

    def broadcast_number(self, number: float) -> float:
        """The first rank's number."""
        return float(self.broadcast(torch.tensor(float(number), dtype=torch.float64)))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Replace the tensor by the first rank's."""
        self._distributed.broadcast(tensor, 0)
        return tensor

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.all_gather([0.0])

    def one_at_a_time(self, work: Callable[[], Found]) -> Found:
        """Load a model. With sharded weights the ranks take turns, since each holds the whole model at first."""
        turns = self.size if self.in_lockstep else 0
        for _ in range(min(self.rank, turns)):
            self.barrier()
        found = work()
        for _ in range(self.rank, turns):
            self.barrier()
        return found

    def is_asked_to_stop(self) -> bool:
        """Whether this rank was asked: by a signal, or by a file that the first rank of each machine looks for."""
        assert self.stop_signal is not None
        if self._is_first_on_machine and time.monotonic() - self._looked_at > _STOP_FILE_SECONDS:
            self._looked_at = time.monotonic()
            self.stop_signal.is_asked |= self._stop_file.exists()
        return self.stop_signal.is_asked

    def close(self) -> None:
        """Leave the process group."""
        self._distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class StepAgreement:
    """What all ranks know after they have agreed on a step."""

    loss: float  # of the whole step
    is_interrupted: bool  # a rank gave up its part, so the step cannot be completed
    is_stopping: bool  # a rank was asked to stop: all stop after this step
    is_time_to_save: bool
    cpu_seconds: float  # of all ranks, so far


class StepAllReduce:
    """The one point per step where ranks exchange losses, requests and gradients.

    This is not torch's DistributedDataParallel, which adds gradients from hooks of one backward pass over one forward
    pass. Here a rank has as many micro-batches as its texts need, perhaps none; two towers pass through the weights
    twice; worker threads compute gradients that no hook sees; and embeddings have sparse gradients. So each rank first
    sums the gradients of its own texts, and the sums are reduced in buckets. The price is that the reduction cannot
    overlap with the last backward pass.
    """

    def __init__(self, ranks: Ranks, model: Module):
        self._ranks = ranks
        # FSDP reduces the gradients of sharded weights during the backward pass.
        self._weights = [weight for weight in model.parameters() if weight.requires_grad and not is_sharded(weight)]
        self._with_gradient: list[Tensor] = []

    def agree(self, loss: float, *, is_interrupted: bool, is_stopping: bool, is_time_to_save: bool) -> StepAgreement:
        """Tell the others what this rank has, and return what all have. Only the first rank decides about saving."""
        has_gradients = [weight.grad is not None for weight in self._weights]
        numbers = (loss, is_interrupted, is_stopping, is_time_to_save, time.process_time())
        losses, interrupted, stopping, saving, cpu_seconds, *has_gradient = zip(
            *self._ranks.all_gather([*numbers, *has_gradients]), strict=True
        )
        # A weight that no text reached has no gradient on any rank, and the optimizer must not decay it either.
        self._with_gradient = [
            weight for weight, by_rank in zip(self._weights, has_gradient, strict=True) if any(by_rank)
        ]
        return StepAgreement(
            loss=sum(losses),
            is_interrupted=any(interrupted),
            is_stopping=any(stopping),
            is_time_to_save=bool(saving[0]),
            cpu_seconds=sum(cpu_seconds),
        )

    def add_gradients(self) -> None:
        """Give every weight the sum of its gradients over all ranks: the same bits everywhere."""
        for bucket in _buckets(self._with_gradient):
            own = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = self._ranks.all_reduce(torch.cat([gradient.reshape(-1) for gradient in own]))
            # Views of a new tensor: the buffers that worker threads keep for their gradients must not change here.
            for weight, part in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = part.view_as(weight)


def _buckets(weights: list[Tensor]) -> list[list[Tensor]]:
    """Consecutive weights of one dtype, grouped into messages of a good size."""
    found: list[list[Tensor]] = []
    size = 0
    for weight in weights:
        if not found or size + weight.nbytes > _BUCKET_BYTES or found[-1][0].dtype != weight.dtype:
            found.append([])
            size = 0
        found[-1].append(weight)
        size += weight.nbytes
    return found


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds a part of it (see `engine.sharding`)."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor. For a sharded one this is a collective: all ranks must call it together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]  # a DTensor has it


def own_device(device: str, info: RankInfo) -> str:
    """The device of this rank: on CUDA each rank has its own GPU."""
    if device == "mps":
        raise MachineError(
            "several processes cannot train together on Apple GPUs: torch has no all-reduce for them",
            found=f"{info.size} processes, device mps",
            try_next=("use one process on the Apple GPU", "use several processes on the CPU"),
        )
    if device.partition(":")[0] != "cuda":
        return device
    if info.local_rank >= torch.cuda.device_count():
        raise MachineError(
            "each process needs its own GPU",
            found=f"{info.local_size} processes on this machine, {torch.cuda.device_count()} CUDA GPUs",
            try_next=("start at most as many processes as there are GPUs",),
        )
    return f"cuda:{info.local_rank}"


def require_enough(batch_size: int, size: int) -> None:
    """Refuse more ranks than a step has examples."""
    if batch_size < size:
        raise RequestError(
            "there are more processes than examples in a step, so some would be idle",
            found=f"{size} processes, batch size {batch_size}",
            try_next=(f"use at most {batch_size} processes", f"use a batch size of {size} or more"),
        )
