"""Where torchrun put this process among those that train together. Imports no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """The number of this process, and how many there are: in all, and on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    def threads(self, planned: int | None) -> int:
        """What the plan gives each rank, or a share of the cores; the plan was made on one machine for all of them."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        share = max(1, cores // self.local_size)
        return min(planned or share, share) if self.size > self.local_size else planned or share


def read_place(environment: Mapping[str, str]) -> Place | None:
    """What torchrun says; None without it, or where it starts one process."""
    size = int(environment.get("WORLD_SIZE", 1))
    if "TORCHELASTIC_RUN_ID" not in environment or size < 2:
        return None
    return Place(
        rank=int(environment["RANK"]),
        size=size,
        local_rank=int(environment["LOCAL_RANK"]),
        local_size=int(environment.get("LOCAL_WORLD_SIZE", size)),
    )
