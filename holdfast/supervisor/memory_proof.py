"""Proves, or rules out, that the system ended a process for memory.

A mark is taken before the attempt; what the counters have gained since is the proof. `oom_kill` of a control group
counts the processes *of that group* that any OOM killer ended, so the child's own group is asked, and the limit is
looked for in it and above it. The count of the whole system, which a neighbour's kill moves too, is believed only where
no group could be asked, and less the kills that the kernel's log, where it may be read, names of others.
`root` is another place for /proc and /sys in tests.
"""

import os
import re
import time
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.cgroups import group_folders, read_group_file
from holdfast.core.text import human_bytes
from holdfast.supervisor.mac_reports import find_jetsam_lines

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as a number near 2**63
_PF_EXITING = 4
_KERNEL_LOG = "/dev/kmsg"
_KERNEL_KILL = re.compile(r"(?:Out of memory|out of memory|oom).*Killed process (?P<pid>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKills:
    """What one control group counted since the mark."""

    group: str
    kills: int
    limit_bytes: int | None
    peak_bytes: int | None
    is_paused: bool  # out of memory with its killer switched off: whoever allocates waits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProof:
    """What the counters gained between the mark and now; empty fields could not be asked."""

    groups: tuple[GroupKills, ...] = ()
    system_kills: int | None = None
    others: int = 0  # kills that the kernel's log names of processes that are not ours
    told: tuple[str, ...] = ()  # the kernel's or macOS's own lines about our processes

    @property
    def has_kill(self) -> bool:
        """True when any of them says that the system ended a process for memory."""
        return bool(self.told or any(group.kills for group in self.groups) or self._unclaimed)

    @property
    def could_be_asked(self) -> bool:
        """True when there was a counter to read, so that its silence means something."""
        return self.system_kills is not None or bool(self.groups)

    @property
    def _unclaimed(self) -> int:
        """Kills of the whole system that may have been ours, for all that is known."""
        return 0 if self.groups else max(0, (self.system_kills or 0) - self.others)

    def lines(self) -> list[str]:
        """Write it as evidence, kills first; what was ruled out is said too."""
        found = [_kill_line(group) for group in self.groups if group.kills]
        found += [
            f"cgroup {group.group} is out of memory and its OOM killer is switched off{_limits(group)}"
            for group in self.groups
            if group.is_paused
        ]
        if self._unclaimed:
            found.append(f"oom_kill +{self._unclaimed} in the whole system, and no cgroup says whose")
        found += list(self.told)
        if not found and self.could_be_asked:
            asked = [f"cgroup {group.group}{_limits(group)}" for group in self.groups]
            asked += ["the whole system"] if self.system_kills == 0 else []
            elsewhere = f"; {self.system_kills} of other processes" if self.system_kills else ""
            found.append(f"no OOM kill counted{' in ' * bool(asked)}{' nor in '.join(asked)}{elsewhere}")
        return found


class MemoryMark:
    """The counters as they stood before an attempt."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._kills: dict[Path, int] = {}  # of each group one of our processes was seen in, when it was first seen
        self._seen: dict[int, tuple[str, Path | None]] = {}  # pid: its membership, and the group that counts for it
        self._system_kills = _system_kills(root)
        self._kernel_line = _last_kernel_line()
        self._time = time.time()
        self.see(os.getpid())

    def see(self, pid: int) -> None:
        """Remember which group a process is in; a wrapper may move the child to one of its own after the start."""
        membership = read_group_file(self._root / "proc" / str(pid) / "cgroup")
        if membership and self._seen.get(pid, ("",))[0] != membership and not _is_leaving(self._root, pid):
            version, folder = _own_group(self._root, pid)
            self._seen[pid] = (membership, folder)
            if folder and folder not in self._kills:
                self._kills[folder] = _group_kills(version, folder)

    def see_all(self, root_pid: int, pids: Iterable[int]) -> None:
        """See the root again, and of the others those that are new: that is cheap enough for every look."""
        self.see(root_pid)
        for pid in pids:
            if pid not in self._seen:
                self.see(pid)

    def proof(self, pids: Collection[int] = ()) -> MemoryProof:
        """What has been counted since. `pids` are our processes, for the lines that name one."""
        own = self._seen.get(os.getpid())
        others = {folder for pid, (_, folder) in self._seen.items() if folder and pid != os.getpid()}
        asked = others or ({own[1]} if own and own[1] else set())  # ours is a neighbour's when the child was moved
        kills = _system_kills(self._root)
        told, elsewhere = _kernel_lines(self._kernel_line, {*pids, *self._seen})
        return MemoryProof(
            groups=tuple(self._since(folder, self._kills[folder]) for folder in sorted(asked) if folder.is_dir()),
            system_kills=None if kills is None or self._system_kills is None else kills - self._system_kills,
            others=elsewhere,
            told=(*told, *find_jetsam_lines(pids, self._time)),
        )

    def _since(self, folder: Path, kills_before: int) -> GroupKills:
        version = 2 if (folder / "memory.events").exists() else 1
        shown = "/" + str(folder.relative_to(self._root))
        paused = version == 1 and "under_oom 1" in read_group_file(folder / "memory.oom_control")
        return GroupKills(
            group=shown,
            kills=max(0, _group_kills(version, folder) - kills_before),
            limit_bytes=_limit(version, folder),
            peak_bytes=_number(folder / ("memory.peak" if version == 2 else "memory.max_usage_in_bytes")),
            is_paused=paused,
        )


def _kill_line(group: GroupKills) -> str:
    return f"oom_kill +{group.kills} in cgroup {group.group}{_limits(group)}"


def _limits(group: GroupKills) -> str:
    limit = f", limit {human_bytes(group.limit_bytes)}" if group.limit_bytes is not None else ", no limit"
    return limit + (f", peak {human_bytes(group.peak_bytes)}" if group.peak_bytes else "")


def _own_group(root: Path, pid: int) -> tuple[int, Path | None]:
    """The innermost group that counts memory; version 2 without the memory controller counts nothing."""
    for version, folder in group_folders("memory", root, pid):
        if (folder / ("memory.events" if version == 2 else "memory.oom_control")).exists():
            return version, folder
    return 0, None


def _is_leaving(root: Path, pid: int) -> bool:
    """True for a process that is about to end: the kernel has put it into the topmost group by then."""
    fields = read_group_file(root / "proc" / str(pid) / "stat").rpartition(")")[2].split()
    return len(fields) > 6 and (fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING))


def _group_kills(version: int, folder: Path) -> int:
    text = read_group_file(folder / ("memory.events" if version == 2 else "memory.oom_control"))
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _limit(version: int, folder: Path) -> int | None:
    """The smallest limit of a group and of those above it."""
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    limits = [_number(place / name) for place in (folder, *folder.parents)]
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT_BYTES), default=None)


def _number(file: Path) -> int | None:
    text = read_group_file(file)
    return int(text) if text.isdigit() else None


def _system_kills(root: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", read_group_file(root / "proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else None


def _read_kernel_log() -> list[tuple[int, str]]:
    """The numbered lines of the kernel's log; none where it may not be read."""
    lines: list[tuple[int, str]] = []
    try:
        log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        while True:
            try:
                record = os.read(log, 8192).decode("utf-8", "replace")
            except BrokenPipeError:  # the record was overwritten while we read
                continue
            head, _, message = record.partition(";")
            lines.append((int(head.split(",")[1]), message.partition("\n")[0]))
    except (OSError, ValueError, IndexError):
        return lines
    finally:
        os.close(log)


def _last_kernel_line() -> int:
    lines = _read_kernel_log()
    return lines[-1][0] if lines else -1


def _kernel_lines(after: int, pids: Container[int]) -> tuple[list[str], int]:
    """The kernel's lines about kills of our processes, and how many it killed of others."""
    found = [
        (match, text) for number, text in _read_kernel_log() if number > after and (match := _KERNEL_KILL.search(text))
    ]
    ours = [f"kernel log: {text[:200]}" for match, text in found if int(match["pid"]) in pids]
    return ours, len(found) - len(ours)
