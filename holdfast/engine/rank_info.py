"""The rank that torchrun gave this process. Imports no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The number of this process and how many there are, in total and on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    def threads(self, planned: int | None) -> int:
        """Threads for this rank: what the plan gives each rank, or an equal share of the cores.

        With several machines the plan was made on one of them, so this machine's share of cores is the limit.
        """
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        share = max(1, cores // self.local_size)
        return min(planned or share, share) if self.size > self.local_size else planned or share


def read_rank_info(environment: Mapping[str, str]) -> RankInfo | None:
    """Read torchrun's variables; None without torchrun, or where it starts a single process."""
    size = int(environment.get("WORLD_SIZE", 1))
    if "TORCHELASTIC_RUN_ID" not in environment or size < 2:
        return None
    return RankInfo(
        rank=int(environment["RANK"]),
        size=size,
        local_rank=int(environment["LOCAL_RANK"]),
        local_size=int(environment.get("LOCAL_WORLD_SIZE", size)),
    )
