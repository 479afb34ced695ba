"""Probes of what this process may use: CPUs, memory, disk space and open files, within the limits of containers.

A control group's limit counts with those of all its parents, and the smallest one wins. Disks are those that a run
really writes to: links are followed, and a missing folder stands for its nearest parent.
"""

import math
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from holdfast.core.cgroups import group_folders, read_group_file, unescape
from holdfast.core.facts import Answer, Disk
from holdfast.machine.commands import output_of
from holdfast.machine.hub import hub_cache_folder

Role = Literal["output", "cache", "temp"]

# These decide which kernels torch uses, or whether a wheel runs at all.
_FLAGS_THAT_MATTER = frozenset(
    {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni"}
    | {"amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "atomics", "bf16", "i8mm", "sve", "sve2"}
)
_SHARED_MEMORY = Path("/dev/shm")
_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as a number near 2**63


def probe_cpu_count() -> Answer[int]:
    """CPUs that this process may use; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        count, source = len(os.sched_getaffinity(0)), "scheduler affinity"
    else:
        count, source = os.cpu_count() or 1, "os.cpu_count; this system has no affinity call"
    quota = cpu_quota()
    if quota and quota[0] < count:
        return Answer(max(1, math.ceil(quota[0])), f"quota of {quota[0]:g} CPUs in {quota[1]}")
    return Answer(count, source)


def probe_cpu_count_physical() -> Answer[int]:
    """Physical cores of the machine; two threads of one core share its arithmetic units."""
    import psutil

    count = psutil.cpu_count(logical=False)
    if not count:
        raise LookupError("the system does not distinguish cores from threads")
    return Answer(count, "psutil.cpu_count")


def probe_cpu_flags() -> Answer[tuple[str, ...]]:
    """The instruction sets that decide which kernels run."""
    if sys.platform == "linux":
        return Answer(read_flags(Path("/proc/cpuinfo").read_text(errors="replace")), "/proc/cpuinfo")
    if sys.platform == "darwin":
        return Answer(read_mac_flags(output_of("sysctl", "hw.optional")), "sysctl hw.optional")
    return Answer((), "not asked on this system")


def read_flags(cpuinfo: str) -> tuple[str, ...]:
    """Pick the flags that matter from /proc/cpuinfo ("flags" on x86, "Features" on ARM)."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(_FLAGS_THAT_MATTER.intersection(found[1].split() if found else ())))


def read_mac_flags(sysctl: str) -> tuple[str, ...]:
    """Pick the flags that matter from `sysctl hw.optional`, which names them differently for Intel and Apple chips."""
    names = re.findall(r"^hw\.optional\.(?:arm\.FEAT_|arm\.)?(\w+): 1$", sysctl, re.MULTILINE)
    renamed = {
        "AdvSIMD": "asimd",
        "neon": "asimd",
        "FP16": "asimdhp",
        "LSE": "atomics",
        "avx2_0": "avx2",
        "avx1_0": "avx",
    }
    return tuple(sorted(_FLAGS_THAT_MATTER.intersection(renamed.get(name, name.lower()) for name in names)))


def probe_memory_bytes() -> Answer[int]:
    """Memory that this process may use; in a container, the container's limit."""
    physical = _physical_bytes()
    limit = memory_limit()
    if limit and limit[0] < physical:
        return Answer(limit[0], f"limit in {limit[1]}")
    return Answer(physical, "psutil.virtual_memory; no smaller limit is set")


def probe_memory_physical_bytes() -> Answer[int]:
    """Memory of the whole machine."""
    return Answer(_physical_bytes(), "psutil.virtual_memory")


def probe_memory_free_bytes() -> Answer[int]:
    """Memory that is available now without swapping."""
    import psutil

    free, room = int(psutil.virtual_memory().available), memory_room()
    if room is not None and room < free:
        return Answer(room, "remaining limit of the control group")
    return Answer(free, "psutil.virtual_memory")


def probe_swap_bytes() -> Answer[int]:
    """Swap space; a run that needs it is as slow as a stopped one."""
    import psutil

    return Answer(int(psutil.swap_memory().total), "psutil.swap_memory")


def probe_shm_bytes() -> Answer[int | None]:
    """Size of the shared-memory mount through which loader workers pass batches."""
    if sys.platform != "linux":
        return Answer(None, "this system has no shared-memory mount")
    room = os.statvfs(_SHARED_MEMORY)
    return Answer(room.f_blocks * room.f_frsize, str(_SHARED_MEMORY))


def probe_shm_free_bytes() -> Answer[int | None]:
    """Free space of the shared-memory mount."""
    if sys.platform != "linux":
        return Answer(None, "this system has no shared-memory mount")
    room = os.statvfs(_SHARED_MEMORY)
    return Answer(room.f_bavail * room.f_frsize, str(_SHARED_MEMORY))


def _physical_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def probe_disks() -> Answer[dict[str, Any]]:
    """The folder a run writes to when started here, the hub's cache, and the folder for temporary files."""
    mounts_file = Path("/proc/self/mountinfo")
    mounts = mounts_file.read_text(errors="replace") if mounts_file.exists() else ""
    places: tuple[tuple[Role, Callable[[], Path]], ...] = (
        ("output", Path.cwd),
        ("cache", lambda: hub_cache_folder(os.environ)),
        ("temp", lambda: Path(tempfile.gettempdir())),
    )
    disks, unanswered = [], []
    for role, place in places:
        try:
            disks.append(disk_at(role, place(), mounts))
        except OSError as error:
            unanswered.append(f"{role} folder: {error.strerror or error}")
    return Answer({"disks": tuple(disks), "unanswered": unanswered}, "statvfs of the nearest existing folder")


def disk_at(role: Role, path: Path, mountinfo: str = "") -> Disk:
    """Measure the file system of a path, which need not exist yet."""
    real = path.resolve()
    standing = nearest_folder(real)
    room = os.statvfs(standing)
    in_the_way = any(parent.exists() and not parent.is_dir() for parent in (real, *real.parents))
    return Disk(
        role=role,
        path=str(real),
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
        filesystem=filesystem_of(standing, mountinfo),
        free_inodes=room.f_favail if room.f_files else None,  # file systems without inodes report 0 of 0
        is_writable=os.access(standing, os.W_OK | os.X_OK) and not in_the_way,
    )


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def filesystem_of(folder: Path, mountinfo: str) -> str:
    """The type of a folder's file system, from the mount table; empty if it is not listed."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        at = Path(unescape(fields[4]))
        if (folder == at or at in folder.parents) and len(at.parts) >= best:
            best, kind = len(at.parts), right.split()[0]
    return kind


def probe_open_file_limit() -> Answer[int | None]:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return Answer(None, "this system has no such limit")
    import resource

    return Answer(resource.getrlimit(resource.RLIMIT_NOFILE)[0], "getrlimit RLIMIT_NOFILE")


def memory_limit(root: Path = Path("/")) -> tuple[int, str] | None:
    """The smallest memory limit of this process's groups in bytes, and the file that sets it."""
    found: list[tuple[int, str]] = []
    for version, folder in group_folders("memory", root):
        file = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        text = read_group_file(file)
        if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            found.append((int(text), _shown(file, root)))
    return min(found, default=None)


def memory_room(root: Path = Path("/")) -> int | None:
    """Bytes left in this process's groups: the limit minus the usage, counting cached files as free."""
    rooms: list[int] = []
    for version, folder in group_folders("memory", root):
        limit = read_group_file(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = read_group_file(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        cached = dict(
            re.findall(r"^((?:total_)?inactive_file) (\d+)$", read_group_file(folder / "memory.stat"), re.MULTILINE)
        )
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES and used.isdigit():
            # Version 1 includes child groups in `total_` and in the usage, but not in the plain number.
            free_cache = int(cached.get("total_inactive_file") or cached.get("inactive_file") or 0)
            rooms.append(max(0, int(limit) - int(used) + free_cache))
    return min(rooms, default=None)


def cpu_quota(root: Path = Path("/")) -> tuple[float, str] | None:
    """The CPU quota of the groups in CPUs, and the file that sets it; None without a quota."""
    found: list[tuple[float, str]] = []
    for version, folder in group_folders("cpu", root):
        if version == 2:
            file = folder / "cpu.max"
            quota, _, period = read_group_file(file).partition(" ")
        else:
            file = folder / "cpu.cfs_quota_us"
            quota, period = read_group_file(file), read_group_file(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            found.append((int(quota) / int(period), _shown(file, root)))
    return min(found, default=None)


def _shown(file: Path, root: Path) -> str:
    return "/" + str(file.relative_to(root))
