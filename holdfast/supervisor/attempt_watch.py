"""Watches one attempt: takes samples, judges them, and says when it hangs.

Reads: the processes and the attempt's heartbeat pages. Leaves nothing: the caller writes down what it wants. One
`AttemptWatch` is for one attempt; nothing it has learned outlives it.

The engine keeps one page, `beat`; a command has one page for each of its Python processes in `beats/`. A launcher and
data-loader workers have pages too, but never a step.
"""

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.heartbeat import Beat, read_beat
from holdfast.core.observations import Activity, GivenUp, TreeVerdict, Verdict
from holdfast.core.runfolder import BEAT, BEATS, OUTPUT
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child_exits import ChildExits
from holdfast.supervisor.clocks import Clocks, read_clocks, slept_seconds
from holdfast.supervisor.hang import Ruling, Silence, SilenceClock, rule
from holdfast.supervisor.liveness import DiskActivity, GpuActivity, StackMotions, waits_for_server
from holdfast.supervisor.members import find_members
from holdfast.supervisor.processes import Identity, ProcessSample, TreeReader, TreeSample, this_system
from holdfast.supervisor.verdict import is_waiting_process, judge_ranks, judge_window, measure_use

# Long enough that a healthy program moves in it (optimizer, data loader and logger all take turns), short enough that a
# deadlock is reported within about five seconds.
WINDOW_SECONDS = 4.0
_QUIET_SECONDS, _MOVING_SECONDS = 0.5, 1.0  # between two samples
_LATE_SECONDS = 5.0  # before it is asked for whose work a training process waits
_MOST_COST, _MOST_COST_QUIET = 200, 20  # times what a sample cost, before the next
_DEBUGGERS = ("debugpy", "pydevd")
_TRAINING_PHASES = ("first step", "step", "evaluate", "save", "export", "begin epoch", "resume")
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSample:
    """What one sample of an attempt showed."""

    phase: str
    step: int
    steps: int
    activity: Activity
    resident_bytes: int
    given_up: GivenUp | None  # why it is hung; None when it is not
    noticed_after_seconds: float | None  # since progress was last seen, when hung
    silent_seconds: float  # since progress was last seen
    pids: tuple[int, ...] = ()  # of the whole tree, root first

    @property
    def verdict(self) -> TreeVerdict:
        """What the tree does."""
        return self.activity.verdict

    @property
    def is_hung(self) -> bool:
        """True when the attempt is to be ended."""
        return self.given_up is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatPosition:
    """How far an attempt is, by its heartbeat pages."""

    phase: str = "start"
    step: int = 0
    steps: int = 0
    training_pids: tuple[int, ...] = ()  # the processes that train; empty when unknown
    marks: frozenset[tuple[int, str, int, int]] = frozenset()  # changes whenever one of them makes progress
    has_beats: bool = False

    @property
    def budget_phase(self) -> str:
        """The phase whose limits apply; after the last step no further step is expected."""
        if not self.has_beats:
            return "unknown"
        return "end" if self.phase == "step" and 0 < self.steps <= self.step else self.phase


class BeatPages:
    """Reads the pages of one attempt."""

    def __init__(self, attempt: Path, root_pid: int):
        self._beat, self._folder, self._root_pid = attempt / BEAT, attempt / BEATS, root_pid
        self._ranks: dict[int, int | None] = {}
        self._last = BeatPosition()

    def read(self, tree: TreeSample) -> BeatPosition:
        """How far the attempt is now."""
        if own := read_beat(self._beat):
            return _position({self._root_pid: own}, (self._root_pid,))
        alive = [process.pid for process in tree.processes]
        beats = {pid: beat for pid in self._pids(alive) if (beat := read_beat(self._folder / str(pid)))}
        if not beats and self._last.has_beats and _is_launcher(alive):
            # Its ranks are gone and it will follow, or start others: they were where they were.
            ranks = self._ranked(alive)
            return dataclasses.replace(self._last, training_pids=ranks, marks=frozenset(), has_beats=False)
        training_pids = tuple(pid for pid, beat in beats.items() if beat.step > 0 or beat.phase in _TRAINING_PHASES)
        self._last = _position(beats, training_pids or self._ranked(alive))
        return self._last

    def rank_of(self, pid: int) -> int | None:
        """The rank of a process under torchrun and the like; None without one."""
        if pid not in self._ranks:
            rank = this_system().variable(pid, "RANK") or ""
            self._ranks[pid] = int(rank) if rank.isdigit() else None
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


class AttemptWatch:
    """Watches one attempt."""

    def __init__(self, attempt: Path, root_pid: int, budgets: Budgets, clocks: Callable[[], Clocks] = read_clocks):
        self.budgets, self._attempt = budgets, attempt
        self._output, self._output_bytes = attempt / OUTPUT, 0
        self.exits = ChildExits()
        self.next_sample_seconds = _QUIET_SECONDS  # how long to wait before the next sample
        self._is_detailed = True
        self._read_clocks, self._clocks = clocks, clocks()
        self._reader, self._beats = TreeReader(root_pid), BeatPages(attempt, root_pid)
        self._motions, self._waits = StackMotions(attempt), this_system().wait_reader(attempt)
        self._outside_seconds = 0.0  # waited for something outside since progress was last seen
        self._known: frozenset[Identity] = frozenset()  # the processes that were there when progress was last seen
        self._samples: deque[TreeSample] = deque()
        self._position = BeatPosition()
        self._clock = SilenceClock(self._clocks.monotonic_seconds)
        self._phase_since = self._clocks.monotonic_seconds
        self._disk, self._gpu = DiskActivity(), GpuActivity()

    def sample(self) -> AttemptSample:
        """Take one sample. Costs about a millisecond; never waits for the child."""
        begun = time.thread_time()
        clocks = self._read_clocks()
        now = clocks.monotonic_seconds
        if slept_seconds(self._clocks, clocks):
            self._wake(now)
        self._clocks = clocks
        tree = self._reader.sample(now, is_detailed=self._is_detailed)
        self.exits.watch(tree.processes)
        self.exits.collect(now)
        self._keep(tree)
        position = self._beats.read(tree)
        has_progress = self._note_progress(position, now) or (not position.has_beats and self._has_new_output(now))
        verdict = self._judge(position, has_progress)
        self._clock.count(now, verdict)
        ruling = self._rule(verdict, now) if tree.processes and not has_progress else Ruling()
        self._set_pace(verdict, ruling, time.thread_time() - begun)
        return self._result(verdict, ruling, now)

    def close(self) -> None:
        """Close everything that is open."""
        self.exits.close()

    def _wake(self, now: float) -> None:
        """Start over after the machine slept."""
        self._samples.clear()
        self._forget()
        self._clock.note_sleep(now)

    def _forget(self) -> None:
        """What stacks have shown is of the past."""
        self._motions.forget()
        self._waits.forget()

    def _keep(self, tree: TreeSample) -> None:
        self._samples.append(tree)
        while len(self._samples) > 2 and self._samples[1].at_seconds <= tree.at_seconds - WINDOW_SECONDS:
            self._samples.popleft()

    def _note_progress(self, position: BeatPosition, now: float) -> bool:
        """Learn from what has changed; True when something has."""
        before, self._position = self._position, position
        if position.marks == before.marks:
            return False
        if self._outside_seconds:
            self.budgets.note_outside(self._outside_seconds)
            self._outside_seconds = 0.0
        if before.phase in ("first step", "step") and position.phase == "step":
            # Several steps between two samples share the time; a single step, or a part of one, took all of it.
            self.budgets.note_step(self._clock.silent_seconds(now) / max(position.step - before.step, 1))
        if position.phase != before.phase:
            if before.has_beats and before.phase != "step":
                self.budgets.note_phase(before.phase, now - self._phase_since)
            self._phase_since = now
        self._forget()
        self._known = frozenset(process.identity for process in self._samples[-1].processes)
        self._clock.note_progress(now)
        return True

    def _has_new_output(self, now: float) -> bool:
        """True when the command printed something: the only sign of progress of one that has no heartbeat."""
        try:
            size = self._output.stat().st_size
        except OSError:
            return False
        before, self._output_bytes = self._output_bytes, size
        if size != before:
            self._clock.note_progress(now)
        return size != before

    def _judge(self, position: BeatPosition, has_progress: bool) -> TreeVerdict:
        first, last = self._samples[0], self._samples[-1]
        is_whole = last.at_seconds - first.at_seconds >= WINDOW_SECONDS
        if not last.processes:
            return TreeVerdict(verdict=Verdict.MOVING, state="ended")
        if any(process.tracer_pid and _is_held(process) for process in last.processes):
            return TreeVerdict(verdict=Verdict.DEBUGGED)
        if has_progress or not is_whole or len(self._samples) < 2:
            return TreeVerdict(verdict=Verdict.MOVING, state="progressing" if has_progress else "starting")
        is_quiet = measure_use(first, last).is_quiet
        is_late = self._clock.silent_seconds(last.at_seconds) >= _LATE_SECONDS
        if is_quiet or (is_late and is_waiting_process(first, last, position.training_pids)):
            self._samples[-1] = last = self._waits.read(last)
        else:
            self._waits.forget()
        verdict = judge_window(tuple(self._samples), self.exits.seen, position.training_pids)
        if verdict.verdict not in (Verdict.MOVING, Verdict.STARVED) and _has_debugger(last):
            return TreeVerdict(verdict=Verdict.DEBUGGED, has_inner_debugger=True)
        if verdict.verdict is Verdict.DEADLOCK and self._has_others():
            return TreeVerdict(verdict=Verdict.TIMED, has_left_tree=True)
        return verdict

    def _has_others(self) -> bool:
        """True if a process that left the tree is found, which could still resolve an apparent deadlock."""
        return self._reader.also(member.pid for member in find_members(self._attempt, None) if not member.is_gone)

    def _rule(self, verdict: TreeVerdict, now: float) -> Ruling:
        tree, is_waiting = self._samples[-1], verdict.verdict not in (Verdict.MOVING, Verdict.STARVED)
        silence = Silence(
            phase=self._position.budget_phase,
            verdict=verdict,
            silent_seconds=self._clock.counted_seconds,
            passed_seconds=self._clock.silent_seconds(now),
            still_seconds=self._clock.still_seconds(now),
            verdict_seconds=self._clock.verdict_seconds(now),
            stacks=self._motions.report,
            is_disk_alive=verdict.verdict is Verdict.KERNEL
            and not waits_for_server(verdict)
            and self._disk.is_alive(now),
            is_gpu_busy=is_waiting and self._gpu.is_busy(tree, now),  # costs a second, so only when it matters
        )
        ruling = rule(silence, self.budgets)
        if verdict.outside:
            self._outside_seconds = max(self._outside_seconds, ruling.waited_seconds)
        if ruling.wants_stacks:
            self._motions.sample(self._samples[0], tree, self._position.training_pids, self._known)
        return ruling

    def _set_pace(self, verdict: TreeVerdict, ruling: Ruling, cost_seconds: float) -> None:
        is_quiet = len(self._samples) > 1 and measure_use(self._samples[-2], self._samples[-1]).is_quiet
        self._is_detailed = is_quiet or ruling.wants_stacks or verdict.verdict is not Verdict.MOVING
        if self._is_detailed:  # sampling often slows down nobody's steps
            self.next_sample_seconds = max(_QUIET_SECONDS, _MOST_COST_QUIET * cost_seconds)
        else:
            self.next_sample_seconds = max(_MOVING_SECONDS, _MOST_COST * cost_seconds)

    def _result(self, verdict: TreeVerdict, ruling: Ruling, now: float) -> AttemptSample:
        position, tree = self._position, self._samples[-1]
        silent = self._clock.silent_seconds(now)
        if ruling.is_hung and verdict.verdict is Verdict.STARVED:  # it got its time, and spun in it
            verdict = replace(verdict, verdict=Verdict.MOVING)
        if ruling.is_hung and len(position.training_pids) > 1:
            ranks = judge_ranks(self._samples[0], self._waits.read(tree), position.training_pids)
            ranks = tuple(replace(one, rank=self._beats.rank_of(one.pid)) for one in ranks)
            verdict = replace(verdict, ranks=ranks)
        return AttemptSample(
            phase=position.phase,
            step=position.step,
            steps=position.steps,
            activity=Activity(
                verdict=verdict,
                waited_seconds=round(ruling.waited_seconds, 1),
                limit_seconds=ruling.limit_seconds and round(ruling.limit_seconds, 1),
                outside=verdict.outside,
            ),
            resident_bytes=tree.resident_bytes,
            given_up=ruling.given_up,
            noticed_after_seconds=silent if ruling.is_hung else None,
            silent_seconds=silent,
            pids=tuple(process.pid for process in tree.processes),
        )


def _is_held(process: ProcessSample) -> bool:
    return any(thread.state == "t" for thread in process.threads)


def _has_debugger(tree: TreeSample) -> bool:
    """True for debuggers that work from inside, over the network."""
    lines = (this_system().command_line(process.pid) for process in tree.processes)
    return any(process.tracer_pid for process in tree.processes) or any(
        name in line for line in lines for name in _DEBUGGERS
    )


def _is_launcher(alive: list[int]) -> bool:
    return bool(alive) and any(name in this_system().command_line(alive[0]) for name in _LAUNCHERS)


def _position(beats: dict[int, Beat], training_pids: tuple[int, ...]) -> BeatPosition:
    if not beats:
        return BeatPosition(training_pids=training_pids)
    own = {pid: beat for pid, beat in beats.items() if pid in training_pids} or beats
    ahead = max(own.values(), key=lambda beat: (beat.step, beat.monotonic_ns))
    return BeatPosition(
        phase=ahead.phase,
        step=ahead.step,
        steps=ahead.steps,
        training_pids=training_pids,
        marks=frozenset((pid, beat.phase, beat.step, beat.count) for pid, beat in own.items()),
        has_beats=True,
    )
