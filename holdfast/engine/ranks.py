"""The processes that train together, one rank each, as torchrun starts them; one process alone is rank 0 of 1.

Ranks take parts of the same step, so order, dropout and effective batch are those of one process. What they must agree
on (when to save, whether to stop) is told by one and known by all before anyone acts on it: two ranks that wait for
different things wait for ever.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from holdfast.core.errors import MachineError, RequestError
from holdfast.engine.place import Place
from holdfast.engine.stopping import Interrupted, Stopping

Found = TypeVar("Found")
Some = TypeVar("Some")

# A rank waits while another one evaluates, writes the model or reads a slow disk. Whether it waits in vain is judged
# from outside, by stacks and processor time; a limit here would end healthy runs, and name the rank that waited.
_PATIENCE = timedelta(hours=24)
_LOOK_SECONDS = 1.0


class Ranks:
    """One process alone."""

    rank, size = 0, 1
    in_lockstep = False  # every forward pass is made by all ranks together
    mesh: Any = None  # what torch calls the ranks that weights are dealt out to, in lockstep
    stopping: Stopping | None = None  # how this process is asked to stop, where others must know

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    @property
    def are_many(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    def deal(self, works: Sequence[Some]) -> Iterator[tuple[Some, bool]]:
        """This rank's share of some pieces of work, and whether its result counts.

        Each has at least one, and in lockstep as many as any other: some are done for nothing.
        """
        own = list(works[self.rank :: self.size])
        yield from ((work, True) for work in own)
        wanted = -(-len(works) // self.size) if self.in_lockstep else min(1, len(works))
        yield from ((works[0], False) for _ in range(wanted - len(own)))

    def apart(self, work: Callable[[], Found]) -> Found:
        """Do what this rank does by itself; when one is asked to stop meanwhile, all are interrupted after it."""
        return work()

    def add(self, tensor: Tensor) -> Tensor:
        """Make it the sum over all ranks, in place."""
        return tensor

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """What each rank says, by rank."""
        return [list(numbers)]

    def tell(self, number: float) -> float:
        """What the first rank says."""
        return number

    def spread(self, tensor: Tensor) -> Tensor:
        """Make it the first rank's, in place."""
        return tensor

    def wait(self) -> None:
        """Wait for all."""

    def in_turns(self, work: Callable[[], Found]) -> Found:
        """Load a model: where weights are dealt out one rank after the other, since each has it whole at first."""
        return work()

    def is_asked_to_stop(self) -> bool:
        """Whether this rank was asked to stop."""
        return False

    def require_same(self, words: str, what: str) -> None:
        """Refuse where the first rank has other words for the same thing."""
        mine = int.from_bytes(hashlib.sha256(words.encode()).digest()[:6])  # which a float64 holds exactly
        if self.tell(mine) != mine:
            raise RequestError(
                f"{what} of rank {self.rank} is not that of the first rank",
                seen=f"here: {words}",
                try_next=("put the same files on every machine",),
            )

    def leave(self) -> None:
        """Say good-bye."""


ALONE = Ranks()


class JoinedRanks(Ranks):
    """Several processes. Small numbers go over gloo, also where tensors lie on cards and go over NCCL."""

    def __init__(self, place: Place, device: str, stop_file: Path, *, in_lockstep: bool = False):
        from torch import distributed

        self.rank, self.size, self.in_lockstep = place.rank, place.size, in_lockstep
        self._is_first_here = place.local_rank == 0
        self.stopping = Stopping()
        self._stop_file, self._looked_at = stop_file, 0.0
        is_on_card = device.startswith("cuda")
        if is_on_card:
            torch.cuda.set_device(device)
        self._distributed = distributed
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if is_on_card else "gloo",
            timeout=_PATIENCE,
            device_id=torch.device(device) if is_on_card else None,
        )
        if in_lockstep:
            from torch.distributed.device_mesh import init_device_mesh

            self.mesh = init_device_mesh("cuda" if is_on_card else "cpu", (place.size,))

    def apart(self, work: Callable[[], Found]) -> Found:
        """Do what this rank does by itself; when one is asked to stop meanwhile, all are interrupted after it."""
        if self.in_lockstep:
            return work()
        found: list[Found] = []
        try:
            assert self.stopping is not None
            with self.stopping.interruptible():
                found.append(work())
        except Interrupted:
            found.clear()
        if any(has_left for (has_left,) in self.gather([not found])):
            raise Interrupted
        return found[0]

    def add(self, tensor: Tensor) -> Tensor:
        """Make it the sum over all ranks, in place."""
        self._distributed.all_reduce(tensor)
        return tensor

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """What each rank says, by rank."""
        all_numbers = torch.zeros(self.size, len(numbers), dtype=torch.float64)
        self._distributed.all_gather_into_tensor(
            all_numbers, torch.tensor([list(map(float, numbers))], dtype=torch.float64)
        )
        found: list[list[float]] = all_numbers.tolist()
        return found

    def tell(self, number: float) -> float:
        """What the first rank says."""
        return float(self.spread(torch.tensor(float(number), dtype=torch.float64)))

    def spread(self, tensor: Tensor) -> Tensor:
        """Make it the first rank's, in place."""
        self._distributed.broadcast(tensor, 0)
        return tensor

    def wait(self) -> None:
        """Wait for all."""
        self.gather([0.0])

    def in_turns(self, work: Callable[[], Found]) -> Found:
        """Load a model: where weights are dealt out one rank after the other, since each has it whole at first."""
        turns = self.size if self.in_lockstep else 0
        for _ in range(min(self.rank, turns)):
            self.wait()
        found = work()
        for _ in range(self.rank, turns):
            self.wait()
        return found

    def is_asked_to_stop(self) -> bool:
        """Whether this rank was asked: by a signal, or by a file that the first of each machine looks for."""
        assert self.stopping is not None
        if self._is_first_here and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self.stopping.is_asked |= self._stop_file.exists()
        return self.stopping.is_asked

    def leave(self) -> None:
        """Say good-bye."""
        self._distributed.destroy_process_group()


def is_dealt_out(tensor: Tensor) -> bool:
    """Whether each rank has a part of it (`engine.sharding`)."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A tensor as one process has it; of one that is dealt out all ranks must ask for it together."""
    return tensor.full_tensor() if is_dealt_out(tensor) else tensor  # type: ignore[attr-defined]  # a DTensor has it


def own_device(device: str, place: Place) -> str:
    """The device of this rank: each has a card of its own."""
    if device == "mps":
        raise MachineError(
            "several processes cannot train on Metal together: torch has nothing that adds their gradients",
            seen=f"{place.size} processes, device mps",
            try_next=("one process on Metal", "several on the CPU"),
        )
    if device.partition(":")[0] != "cuda":
        return device
    if place.local_rank >= torch.cuda.device_count():
        raise MachineError(
            "each process needs a card of its own",
            seen=f"{place.local_size} processes on this machine, {torch.cuda.device_count()} CUDA cards",
            try_next=("as many processes as there are cards",),
        )
    return f"cuda:{place.local_rank}"


def require_enough(batch_size: int, size: int) -> None:
    """Refuse more ranks than a step has examples."""
    if batch_size < size:
        raise RequestError(
            "there are more processes than examples in a step, so some would have nothing to do",
            seen=f"{size} processes, batch size {batch_size}",
            try_next=(f"at most {batch_size} processes", f"a batch size of {size} or more"),
        )
