"""Ranks that are threads of one process: they meet as processes do, without a second's start."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from holdfast.engine.ranks import Ranks

Found = TypeVar("Found")
LIMIT_SECONDS = 60
_LOADING = threading.Lock()


class ThreadRanks(Ranks):
    """One rank of several. Sums are taken in the order of the ranks."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, table: list[object], *, in_lockstep: bool):
        self.rank, self.size, self.in_lockstep = rank, size, in_lockstep
        self._meeting, self._table = meeting, table

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self._exchange(tensor.clone())).sum(0))

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        return self._exchange([float(number) for number in numbers])

    def broadcast_number(self, number: float) -> float:
        return self._exchange(float(number))[0]

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self._exchange(tensor.clone())[0])

    def barrier(self) -> None:
        self._exchange(None)

    def one_at_a_time(self, work: Callable[[], Found]) -> Found:
        with _LOADING:  # threads share torch's generator, which new weights are drawn from
            found = work()
        self.barrier()
        return found

    def _exchange(self, own):
        self._table[self.rank] = own
        self._meeting.wait(LIMIT_SECONDS)
        found = list(self._table)
        self._meeting.wait(LIMIT_SECONDS)
        return found


def together(size: int, work: Callable[[Ranks], Found], *, in_lockstep: bool = False) -> list[Found]:
    """Let so many ranks do this at once; give what each found, by rank."""
    meeting, table = threading.Barrier(size), [None] * size

    def of_one(rank: int) -> Found:
        torch.set_num_threads(1)
        try:
            return work(ThreadRanks(rank, size, meeting, table, in_lockstep=in_lockstep))
        except BaseException:
            meeting.abort()  # or the others would wait in vain
            raise

    with ThreadPoolExecutor(size) as pool:
        return [one.result() for one in [pool.submit(of_one, rank) for rank in range(size)]]
