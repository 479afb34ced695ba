"""Limits that control groups set, in both versions, with those of every parent: the smallest one counts.

A container sees its own group as the root of the mount; without a namespace the path in /proc/self/cgroup is the host's
and the mount shows only the part below it. Both are followed. `root` is another place for /proc and /sys in tests.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted control-group tree: which version, for which controllers, and what part of the tree it shows."""

    version: Literal[1, 2]
    controllers: frozenset[str]
    shows: str  # path inside the tree
    at: str  # mount point


def memory_limit(root: Path = Path("/")) -> tuple[int, str] | None:
    """The smallest memory limit above this process in bytes, and the file that says so."""
    found: list[tuple[int, str]] = []
    for version, folder in _folders("memory", root):
        file = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        text = _read(file)
        if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            found.append((int(text), _shown(file, root)))
    return min(found, default=None)


def memory_room(root: Path = Path("/")) -> int | None:
    """Bytes that this process's groups still grant: limit less use, where cached files count as free."""
    rooms: list[int] = []
    for version, folder in _folders("memory", root):
        limit = _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = _read(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        cached = dict(re.findall(r"^((?:total_)?inactive_file) (\d+)$", _read(folder / "memory.stat"), re.MULTILINE))
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES and used.isdigit():
            # Version 1 counts the groups below in `total_` and in the use, but not in the plain number.
            free_cache = int(cached.get("total_inactive_file") or cached.get("inactive_file") or 0)
            rooms.append(max(0, int(limit) - int(used) + free_cache))
    return min(rooms, default=None)


def cpu_quota(root: Path = Path("/")) -> tuple[float, str] | None:
    """How many CPUs' worth of time the groups grant, and the file that says so; None without a quota."""
    found: list[tuple[float, str]] = []
    for version, folder in _folders("cpu", root):
        if version == 2:
            file = folder / "cpu.max"
            quota, _, period = _read(file).partition(" ")
        else:
            file = folder / "cpu.cfs_quota_us"
            quota, period = _read(file), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            found.append((int(quota) / int(period), _shown(file, root)))
    return min(found, default=None)


def read_mounts(mountinfo: str) -> list[Mount]:
    """Find the control-group trees in /proc/self/mountinfo."""
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        version: Literal[1, 2] = 2 if kinds[0] == "cgroup2" else 1
        mounts.append(Mount(version, frozenset(kinds[2].split(",")), unescape(fields[3]), unescape(fields[4])))
    return mounts


def read_membership(cgroup: str) -> list[tuple[frozenset[str], str]]:
    """Read /proc/self/cgroup: the controllers of each tree (none for version 2) and this process's path in it."""
    rows = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    return [(frozenset(filter(None, controllers.split(","))), path) for _, controllers, path in rows]


def unescape(path: str) -> str:
    """Undo the octal escapes of a mount table, such as `\\040` for a space."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


def _folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """The folders of one controller from this process's group up to the top of what is mounted."""
    mounts = read_mounts(_read(root / "proc/self/mountinfo"))
    for controllers, path in read_membership(_read(root / "proc/self/cgroup")):
        for mount in mounts:
            is_it = controller in (controllers & mount.controllers) if mount.version == 1 else not controllers
            if is_it:
                top = root / mount.at.lstrip("/")
                inside = _inside(path, mount.shows)
                yield from ((mount.version, top.joinpath(*inside[:depth])) for depth in range(len(inside), -1, -1))


def _inside(path: str, shown: str) -> tuple[str, ...]:
    """The part of a group's path that a mount shows; nothing where the path lies outside of it."""
    parts, top = tuple(filter(None, path.split("/"))), tuple(filter(None, shown.split("/")))
    return parts[len(top) :] if parts[: len(top)] == top and ".." not in parts else ()


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _shown(file: Path, root: Path) -> str:
    return "/" + str(file.relative_to(root))
