"""Finds the control groups of a process, in versions 1 and 2, from its own group up to the top of the mount.

A container sees its own group as the root of the mount; without a namespace the path in /proc/PID/cgroup is the host's
and the mount shows only the part below it. Both are followed. In tests, `root` replaces the root of /proc and
/sys.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted control-group tree: which version, for which controllers, and what part of the tree it shows."""

    version: Literal[1, 2]
    controllers: frozenset[str]
    shows: str  # path inside the tree
    at: str  # mount point


def group_folders(controller: str, root: Path = Path("/"), pid: int | None = None) -> Iterator[tuple[int, Path]]:
    """The folders of one controller with its version, from the group of a process (by default this one) to the top."""
    mounts = read_mounts(read_group_file(root / "proc/self/mountinfo"))
    membership = read_group_file(root / "proc" / str(pid or "self") / "cgroup")
    for controllers, path in read_membership(membership):
        for mount in mounts:
            is_it = controller in (controllers & mount.controllers) if mount.version == 1 else not controllers
            if is_it:
                top = root / mount.at.lstrip("/")
                inside = _inside(path, mount.shows)
                yield from ((mount.version, top.joinpath(*inside[:depth])) for depth in range(len(inside), -1, -1))


def read_group_file(file: Path) -> str:
    """The content of a group's file; empty if it is missing or not readable."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def frozen_group(pid: int, root: Path = Path("/")) -> Path | None:
    """The group that freezes a process, if any. Its processes continue once the group is thawed."""
    for version, folder in group_folders("freezer", root, pid):
        told = read_group_file(folder / ("cgroup.events" if version == 2 else "freezer.state"))
        if "frozen 1" in told or told in ("FROZEN", "FREEZING"):
            return folder
    return None


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


def _inside(path: str, shown: str) -> tuple[str, ...]:
    """The part of a group's path that a mount shows; None if the path is outside the mount."""
    parts, top = tuple(filter(None, path.split("/"))), tuple(filter(None, shown.split("/")))
    return parts[len(top) :] if parts[: len(top)] == top and ".." not in parts else ()
