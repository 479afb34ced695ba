"""Finds out how far an attempt is: its phase and step, and which of its processes train.

The engine keeps one page, `beat`; a command has one page for each of its Python processes in `beats/`. A launcher and
data-loader workers have pages too, but never a step.
"""

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.heartbeat import Beat, read_beat
from holdfast.core.runfolder import BEAT, BEATS
from holdfast.supervisor.processes import TreeSample, read_command_line, read_variable

_TRAINS = ("first step", "step", "evaluate", "save", "export", "begin epoch", "resume")
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far an attempt is."""

    phase: str = "start"
    step: int = 0
    steps: int = 0
    fronts: tuple[int, ...] = ()  # the processes that train; empty when nothing says which
    marks: frozenset[tuple[int, str, int, int]] = frozenset()  # changes whenever one of them gets on
    has_beats: bool = False

    @property
    def budget_phase(self) -> str:
        """The phase whose limits apply: after the last step no further one is due."""
        if not self.has_beats:
            return "unknown"
        return "end" if self.phase == "step" and 0 < self.steps <= self.step else self.phase


class Beats:
    """Reads the pages of one attempt."""

    def __init__(self, attempt: Path, root_pid: int):
        self._beat, self._folder, self._root_pid = attempt / BEAT, attempt / BEATS, root_pid
        self._ranks: dict[int, str | None] = {}
        self._last = Position()

    def read(self, tree: TreeSample) -> Position:
        """How far the attempt is now."""
        if own := read_beat(self._beat):
            return _position({self._root_pid: own}, (self._root_pid,))
        alive = [process.pid for process in tree.processes]
        beats = {pid: beat for pid in self._pids(alive) if (beat := read_beat(self._folder / str(pid)))}
        if not beats and self._last.has_beats and _is_launcher(alive):
            # Its ranks are gone and it will follow, or start others: they were where they were.
            return dataclasses.replace(self._last, fronts=self._ranked(alive), marks=frozenset(), has_beats=False)
        fronts = tuple(pid for pid, beat in beats.items() if beat.step > 0 or beat.phase in _TRAINS)
        self._last = _position(beats, fronts or self._ranked(alive))
        return self._last

    def rank_of(self, pid: int) -> str | None:
        """The rank of a process under torchrun and the like; None without one."""
        if pid not in self._ranks:
            self._ranks[pid] = read_variable(pid, "RANK")
        return self._ranks[pid]

    def _pids(self, alive: list[int]) -> Iterable[int]:
        try:
            names = set(os.listdir(self._folder))  # noqa: PTH208  (names alone: one call, no paths made)
        except OSError:
            return []
        return [pid for pid in alive if str(pid) in names]

    def _ranked(self, alive: list[int]) -> tuple[int, ...]:
        """The ranks that a launcher has started; it sleeps between looking after them, which says nothing."""
        if len(alive) < 2 or not _is_launcher(alive):
            return ()
        return tuple(pid for pid in alive[1:] if self.rank_of(pid) is not None)


def _is_launcher(alive: list[int]) -> bool:
    return bool(alive) and any(name in read_command_line(alive[0]) for name in _LAUNCHERS)


def _position(beats: dict[int, Beat], fronts: tuple[int, ...]) -> Position:
    if not beats:
        return Position(fronts=fronts)
    telling = {pid: beat for pid, beat in beats.items() if pid in fronts} or beats
    ahead = max(telling.values(), key=lambda beat: (beat.step, beat.monotonic_ns))
    return Position(
        phase=ahead.phase,
        step=ahead.step,
        steps=ahead.steps,
        fronts=fronts,
        marks=frozenset((pid, beat.phase, beat.step, beat.count) for pid, beat in telling.items()),
        has_beats=True,
    )
