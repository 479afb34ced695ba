"""Limits that control groups set, in both versions, with those of every parent: the smallest one counts.

`root` is another place for /proc and /sys in tests.
"""

import re
from pathlib import Path

from holdfast.core.groups import group_folders, read_group_file

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as a number near 2**63


def memory_limit(root: Path = Path("/")) -> tuple[int, str] | None:
    """The smallest memory limit above this process in bytes, and the file that says so."""
    found: list[tuple[int, str]] = []
    for version, folder in group_folders("memory", root):
        file = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        text = read_group_file(file)
        if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            found.append((int(text), _shown(file, root)))
    return min(found, default=None)


def memory_room(root: Path = Path("/")) -> int | None:
    """Bytes that this process's groups still grant: limit less use, where cached files count as free."""
    rooms: list[int] = []
    for version, folder in group_folders("memory", root):
        limit = read_group_file(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = read_group_file(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        cached = dict(
            re.findall(r"^((?:total_)?inactive_file) (\d+)$", read_group_file(folder / "memory.stat"), re.MULTILINE)
        )
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES and used.isdigit():
            # Version 1 counts the groups below in `total_` and in the use, but not in the plain number.
            free_cache = int(cached.get("total_inactive_file") or cached.get("inactive_file") or 0)
            rooms.append(max(0, int(limit) - int(used) + free_cache))
    return min(rooms, default=None)


def cpu_quota(root: Path = Path("/")) -> tuple[float, str] | None:
    """How many CPUs' worth of time the groups grant, and the file that says so; None without a quota."""
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
