"""Memory that a run may use: of the box, after a container's limit, free now, swap, and shared memory."""

import os
import sys
from pathlib import Path

from holdfast.core.facts import Answer
from holdfast.machine.cgroup import memory_limit, memory_room

_SHARED_MEMORY = Path("/dev/shm")


def probe_memory_bytes() -> Answer[int]:
    """Memory this process may use; a container's limit is the real size of the machine."""
    physical = _physical_bytes()
    limit = memory_limit()
    if limit and limit[0] < physical:
        return Answer(limit[0], f"limit in {limit[1]}")
    return Answer(physical, "psutil.virtual_memory; no smaller limit is set")


def probe_memory_physical_bytes() -> Answer[int]:
    """Memory of the whole box."""
    return Answer(_physical_bytes(), "psutil.virtual_memory")


def probe_memory_free_bytes() -> Answer[int]:
    """Memory that could be had now without swapping."""
    import psutil

    free, room = int(psutil.virtual_memory().available), memory_room()
    if room is not None and room < free:
        return Answer(room, "what the control group still grants")
    return Answer(free, "psutil.virtual_memory")


def probe_swap_bytes() -> Answer[int]:
    """Swap space; a run that lives in it is as good as stopped."""
    import psutil

    return Answer(int(psutil.swap_memory().total), "psutil.swap_memory")


def probe_shm_bytes() -> Answer[int | None]:
    """Size of the shared-memory mount through which loader workers hand over batches."""
    if sys.platform != "linux":
        return Answer(None, "this system has no shared-memory mount")
    room = os.statvfs(_SHARED_MEMORY)
    return Answer(room.f_blocks * room.f_frsize, str(_SHARED_MEMORY))


def probe_shm_free_bytes() -> Answer[int | None]:
    """What is free in the shared-memory mount."""
    if sys.platform != "linux":
        return Answer(None, "this system has no shared-memory mount")
    room = os.statvfs(_SHARED_MEMORY)
    return Answer(room.f_bavail * room.f_frsize, str(_SHARED_MEMORY))


def _physical_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)
