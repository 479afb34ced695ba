"""The processes that train together, one rank each; a single process is rank 0 of 1. Imports no torch.

`distributed_ranks` has the collectives of several processes.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.errors import RequestError
from holdfast.engine.sigterm import StopSignal

if TYPE_CHECKING:
    from torch import Tensor

Found = TypeVar("Found")
Work = TypeVar("Work")


class Ranks:
    """A single process: every collective is a no-op."""

    rank, size = 0, 1
    in_lockstep = False  # all ranks make every forward pass together, because weights are sharded
    mesh: Any = None  # torch's name for the ranks that share sharded weights
    stop_signal: StopSignal | None = None  # how this process is asked to stop, where other ranks must know

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes events, checkpoints and the model."""
        return self.rank == 0

    @property
    def are_many(self) -> bool:
        """Whether there are other ranks."""
        return self.size > 1

    def own_share(self, work: Sequence[Work]) -> Iterator[tuple[Work, bool]]:
        """This rank's share of some pieces of work, each with whether its result counts.

        Each rank gets at least one piece, and in lockstep as many as any other: surplus pieces do not count.
        """
        own = list(work[self.rank :: self.size])
        yield from ((piece, True) for piece in own)
        needed = -(-len(work) // self.size) if self.in_lockstep else min(1, len(work))
        yield from ((work[0], False) for _ in range(needed - len(own)))

    def independently(self, work: Callable[[], Found]) -> Found:
        """Do work without collectives. If any rank is asked to stop meanwhile, all are interrupted after it."""
        return work()

    def all_reduce(self, tensor: "Tensor") -> "Tensor":
        """Replace the tensor by its sum over all ranks."""
        return tensor

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank."""
        return [list(numbers)]

    def broadcast_number(self, number: float) -> float:
        """The first rank's number."""
        return number

    def broadcast(self, tensor: "Tensor") -> "Tensor":
        """Replace the tensor by the first rank's."""
        return tensor

    def barrier(self) -> None:
        """Wait for all ranks."""

    def one_at_a_time(self, work: Callable[[], Found]) -> Found:
        """Load a model. With sharded weights the ranks take turns, since each holds the whole model at first."""
        return work()

    def is_asked_to_stop(self) -> bool:
        """Whether this rank was asked to stop."""
        return False

    def require_same(self, value: str, what: str) -> None:
        """Refuse to train where this rank's value differs from the first rank's."""
        mine = int.from_bytes(hashlib.sha256(value.encode()).digest()[:6])  # 48 bits, which a float64 holds exactly
        if self.broadcast_number(mine) != mine:
            raise RequestError(
                f"{what} differs between rank {self.rank} and rank 0",
                found=f"on rank {self.rank}: {value}",
                try_next=("put the same files on every machine",),
            )

    def close(self) -> None:
        """Leave the process group."""


ALONE = Ranks()
