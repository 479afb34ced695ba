"""Proves, or rules out, that the system ended a process for memory; and says how the memory of an attempt grew.

A mark is taken before the attempt; what the counters have gained since is the proof. `oom_kill` of a control group
counts the processes *of that group* that any OOM killer ended, so the child's own group is asked, and its limit is the
smallest of it and the groups above it. The count of the whole system, which a kill of any other program raises too, is
believed only where no group could be asked, and less the kills of other processes that the kernel's log names.
`root` is another place for /proc and /sys in tests.
"""

import os
import re
import time
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.cgroups import group_folders, read_group_file
from holdfast.core.event_log import read_events
from holdfast.core.events import TreeSampled
from holdfast.core.observations import (
    JetsamKill,
    KernelKill,
    MemoryRoom,
    MemoryUse,
    NoOomKill,
    Observation,
    OomKill,
    OomKillerOff,
)
from holdfast.core.runfolder import SAMPLES
from holdfast.supervisor.mac_reports import find_jetsam_kills

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as a number near 2**63
_PF_EXITING = 4
_KERNEL_LOG = "/dev/kmsg"
_KERNEL_KILL = re.compile(r"(?:Out of memory|out of memory|oom).*Killed process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?")
_KERNEL_RESIDENT = re.compile(r"anon-rss:(?P<anonymous>\d+)kB, file-rss:(?P<file>\d+)kB")
_ROOM_SECONDS = 2.0  # between two looks at the machine's free memory
_ENOUGH_SAMPLES = 8
_RISE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKills:
    """What one control group counted since the mark."""

    group: str
    kills: int
    limit_bytes: int | None
    peak_bytes: int | None
    is_paused: bool  # out of memory with its killer switched off: any allocation waits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProof:
    """What the counters gained between the mark and now; empty fields could not be asked."""

    groups: tuple[GroupKills, ...] = ()
    system_kills: int | None = None
    other_kills: int = 0  # of processes that are not ours, by the kernel's log
    reports: tuple[KernelKill | JetsamKill, ...] = ()  # what the kernel or macOS wrote about our processes
    room: MemoryRoom | None = None  # where the kernel counts no kills

    @property
    def has_kill(self) -> bool:
        """True when any of them says that the system ended a process for memory."""
        return bool(self.reports or any(group.kills for group in self.groups) or self._unclaimed)

    @property
    def could_be_asked(self) -> bool:
        """True when there was a counter to read, so that its silence means something."""
        return self.system_kills is not None or bool(self.groups)

    @property
    def rules_out_kill(self) -> bool:
        """True when no process was killed for memory: nothing was counted, or there was plenty all the time."""
        was_ample = self.room is not None and self.room.is_ample
        return not self.has_kill and (self.could_be_asked or was_ample)

    @property
    def _unclaimed(self) -> int:
        """Kills of the whole system that may have been ours."""
        return 0 if self.groups else max(0, (self.system_kills or 0) - self.other_kills)

    def observations(self) -> list[Observation]:
        """The kills first; or that there was none."""
        found: list[Observation] = [
            OomKill(
                kills=group.kills,
                cgroup=group.group,
                limit_bytes=group.limit_bytes,
                peak_bytes=group.peak_bytes,
            )
            for group in self.groups
            if group.kills
        ]
        found += [
            OomKillerOff(cgroup=group.group, limit_bytes=group.limit_bytes, peak_bytes=group.peak_bytes)
            for group in self.groups
            if group.is_paused
        ]
        if self._unclaimed:
            found.append(OomKill(kills=self._unclaimed))
        found += self.reports
        found += [self.room] if self.room else []
        if not found and self.could_be_asked:  # a room is asked for only where no counter is
            found.append(
                NoOomKill(
                    cgroups=tuple(group.group for group in self.groups),
                    limit_bytes=min((one.limit_bytes for one in self.groups if one.limit_bytes), default=None),
                    is_system_asked=self.system_kills == 0,
                    other_kills=self.system_kills or 0,
                )
            )
        return found


class MemoryMark:
    """The counters before an attempt."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._kills: dict[Path, int] = {}  # of each group one of our processes was seen in, when it was first seen
        self._seen: dict[int, tuple[str, Path | None]] = {}  # pid: its membership, and the group that counts for it
        self._system_kills = _system_kills(root)
        self._kernel_line = _last_kernel_line()
        self._time = time.time()
        self._room_at, self._lowest_free, self._total, self._peak = float("-inf"), 0, 0, 0
        self.see(os.getpid())

    def see(self, pid: int) -> None:
        """Remember which group a process is in; a wrapper may move the child to another group after the start."""
        membership = read_group_file(self._root / "proc" / str(pid) / "cgroup")
        if membership and self._seen.get(pid, ("",))[0] != membership and not _is_leaving(self._root, pid):
            version, folder = _own_group(self._root, pid)
            self._seen[pid] = (membership, folder)
            if folder and folder not in self._kills:
                self._kills[folder] = _group_kills(version, folder)

    def see_all(self, root_pid: int, pids: Iterable[int], resident_bytes: int = 0) -> None:
        """Check the root again and all new processes, which is cheap enough for every sample."""
        self._peak = max(self._peak, resident_bytes)
        if self._system_kills is None and time.monotonic() - self._room_at >= _ROOM_SECONDS:
            self._see_room()
        self.see(root_pid)
        for pid in pids:
            if pid not in self._seen:
                self.see(pid)

    def _see_room(self) -> None:
        import psutil

        self._room_at = time.monotonic()
        try:
            memory = psutil.virtual_memory()
        except Exception:  # each system refuses in its own way
            return
        self._total = memory.total
        self._lowest_free = min(self._lowest_free or memory.available, memory.available)

    def groups(self) -> tuple[str, ...]:
        """The control groups that our processes were seen in."""
        return tuple(sorted({membership.rpartition(":")[2].strip() for membership, _ in self._seen.values()}))

    def proof(self, pids: Collection[int] = ()) -> MemoryProof:
        """What has been counted since. `pids` are our processes, for the lines that name one."""
        own = self._seen.get(os.getpid())
        others = {folder for pid, (_, folder) in self._seen.items() if folder and pid != os.getpid()}
        asked = others or ({own[1]} if own and own[1] else set())  # ours is a neighbour's when the child was moved
        kills = _system_kills(self._root)
        reports, other_kills = _kernel_kills(self._kernel_line, {*pids, *self._seen})
        return MemoryProof(
            groups=tuple(self._since(folder, self._kills[folder]) for folder in sorted(asked) if folder.is_dir()),
            system_kills=None if kills is None or self._system_kills is None else kills - self._system_kills,
            other_kills=other_kills,
            reports=(*reports, *find_jetsam_kills(pids, self._time)),
            room=MemoryRoom(lowest_free_bytes=self._lowest_free, total_bytes=self._total, peak_bytes=self._peak)
            if self._total
            else None,
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


def _own_group(root: Path, pid: int) -> tuple[int, Path | None]:
    """The innermost group that counts memory; version 2 without the memory controller counts nothing."""
    for version, folder in group_folders("memory", root, pid):
        if (folder / ("memory.events" if version == 2 else "memory.oom_control")).exists():
            return version, folder
    return 0, None


def _is_leaving(root: Path, pid: int) -> bool:
    """True for an exiting process, which the kernel has already moved to the topmost group."""
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


def _kernel_kills(after: int, pids: Container[int]) -> tuple[list[KernelKill], int]:
    """The kernel's reports of kills of our processes, and how many it killed of others."""
    found = [
        (match, text) for number, text in _read_kernel_log() if number > after and (match := _KERNEL_KILL.search(text))
    ]
    ours = [_kernel_kill(match, text) for match, text in found if int(match["pid"]) in pids]
    return ours, len(found) - len(ours)


def _kernel_kill(match: re.Match[str], text: str) -> KernelKill:
    resident = _KERNEL_RESIDENT.search(text)
    kilobytes = int(resident["anonymous"]) + int(resident["file"]) if resident else 0
    return KernelKill(
        text=text[:200],
        pid=int(match["pid"]),
        name=match["name"] or "",
        resident_bytes=1024 * kilobytes or None,
    )


def find_memory_use(attempt: Path) -> list[MemoryUse]:
    """How much memory the tree held in the last sample, and whether it grew step by step."""
    samples = _living_samples(attempt)
    if not samples:
        return []
    steps, sizes = [sample.step for sample in samples], [sample.resident_bytes for sample in samples]
    middle, per_step = len(sizes) // 2, _growth_per_step(list(zip(steps, sizes, strict=True)))
    has_grown = per_step > 0 and sizes[-1] > _RISE * sizes[middle]
    return [
        MemoryUse(
            last_bytes=sizes[-1],
            peak_bytes=max(*sizes, samples[-1].peak_bytes),
            growth_per_step=per_step if has_grown else 0.0,
            since_step=steps[middle] if has_grown else 0,
        )
    ]


def last_resident_bytes(attempt: Path) -> int | None:
    """What the tree held in the last sample that saw it alive."""
    samples = _living_samples(attempt)
    return samples[-1].resident_bytes if samples else None


def _living_samples(attempt: Path) -> list[TreeSampled]:
    """The samples that saw processes alive, oldest first."""
    samples = (event for event in read_events(attempt / SAMPLES) if isinstance(event, TreeSampled))
    return [sample for sample in samples if sample.resident_bytes]


def _growth_per_step(samples: list[tuple[int, int]]) -> float:
    """Bytes a step over the later half; 0 where it also falls, or where there is too little to say."""
    later = samples[len(samples) // 2 :]
    if len(later) < _ENOUGH_SAMPLES // 2 or later[-1][0] <= later[0][0]:
        return 0.0
    highest = 0
    for _, size in later:
        if size < 0.95 * highest:
            return 0.0
        highest = max(highest, size)
    return (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0])
