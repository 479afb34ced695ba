"""Watches one attempt: takes samples, judges them, and says when it hangs.

Reads: /proc, the attempt's beats. Leaves nothing: the caller writes down what it wants. One `Watch` is for one attempt;
nothing it has learnt outlives it.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.runfolder import OUTPUT
from holdfast.core.text import human_seconds
from holdfast.supervisor.beats import Beats, Position
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child_exits import ChildExits
from holdfast.supervisor.clocks import Clocks, read_clocks, slept_seconds
from holdfast.supervisor.devices import Disk, Gpu, waits_for_server
from holdfast.supervisor.hang import Ruling, Silence, rule
from holdfast.supervisor.members import find_members
from holdfast.supervisor.motion import Motions
from holdfast.supervisor.processes import ProcessSample, TreeReader, TreeSample, read_command_line
from holdfast.supervisor.silence import SilenceClock
from holdfast.supervisor.verdict import Judged, Verdict, judge_window, measure_use, rank_words, stand_all
from holdfast.supervisor.waits import describe_waits

WINDOW_SECONDS = 4.0
_QUIET_SECONDS, _MOVING_SECONDS = 0.5, 1.0  # between two looks
_MOST_COST, _MOST_COST_QUIET = 200, 20  # times what a look cost, before the next
_TOLD_SECONDS = 5.0  # of waiting, from which on they are worth saying
_DEBUGGERS = ("debugpy", "pydevd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at an attempt showed."""

    phase: str
    step: int
    steps: int
    judged: Judged
    words: str  # what it does, and when a wait of it will be given up
    resident_bytes: int
    is_hung: bool
    because: str  # why it is hung, and by whom where several train; empty when it is not
    noticed_after_seconds: float | None  # since progress was last seen, when hung
    silent_seconds: float  # since progress was last seen
    pids: tuple[int, ...] = ()  # of the whole tree, root first


class Watch:
    """Watches one attempt."""

    def __init__(self, attempt: Path, root_pid: int, budgets: Budgets, clocks: Callable[[], Clocks] = read_clocks):
        self.budgets, self._attempt = budgets, attempt
        self._output, self._output_bytes = attempt / OUTPUT, 0
        self.exits = ChildExits()
        self.next_look_seconds = _QUIET_SECONDS  # how long to wait before looking again
        self._is_close = True
        self._read_clocks, self._clocks = clocks, clocks()
        self._reader, self._beats, self._motions = TreeReader(root_pid), Beats(attempt, root_pid), Motions(attempt)
        self._samples: deque[TreeSample] = deque()
        self._position = Position()
        self._clock = SilenceClock(self._clocks.monotonic_seconds)
        self._phase_since = self._clocks.monotonic_seconds
        self._disk, self._gpu = Disk(), Gpu()

    def look(self) -> Look:
        """Look once. Costs about a millisecond; never waits for the child."""
        begun = time.thread_time()
        clocks = self._read_clocks()
        now = clocks.monotonic_seconds
        if slept_seconds(self._clocks, clocks):
            self._wake(now)
        self._clocks = clocks
        tree = self._reader.sample(now, is_close=self._is_close)
        self.exits.watch(tree.processes)
        self.exits.collect(now)
        self._keep(tree)
        position = self._beats.read(tree)
        has_progress = self._note_progress(position, now) or (not position.has_beats and self._has_new_output(now))
        judged = self._judge(position, has_progress)
        self._clock.count(now, judged)
        ruling = self._rule(judged, now) if tree.processes and not has_progress else Ruling()
        self._set_pace(judged, ruling, time.thread_time() - begun)
        return self._told(judged, ruling, now)

    def close(self) -> None:
        """Let go of what is held."""
        self.exits.close()

    def _wake(self, now: float) -> None:
        """Begin again after the machine has slept."""
        self._samples.clear()
        self._motions.forget()
        self._clock.note_sleep(now)

    def _keep(self, tree: TreeSample) -> None:
        self._samples.append(tree)
        while len(self._samples) > 2 and self._samples[1].at_seconds <= tree.at_seconds - WINDOW_SECONDS:
            self._samples.popleft()

    def _note_progress(self, position: Position, now: float) -> bool:
        """Learn from what has changed; True when something has."""
        before, self._position = self._position, position
        if position.marks == before.marks:
            return False
        if before.phase in ("first step", "step") and position.phase == "step":
            # Of several steps between two looks each took its share; one alone, or a part of one, took all of it.
            self.budgets.note_step(self._clock.silent_seconds(now) / max(position.step - before.step, 1))
        if position.phase != before.phase:
            if before.has_beats and before.phase != "step":
                self.budgets.note_phase(before.phase, now - self._phase_since)
            self._phase_since = now
        self._motions.forget()
        self._clock.note_progress(now)
        return True

    def _has_new_output(self, now: float) -> bool:
        """What is printed is little, but all there is of a command that tells nothing else of itself."""
        try:
            size = self._output.stat().st_size
        except OSError:
            return False
        before, self._output_bytes = self._output_bytes, size
        if size != before:
            self._clock.note_progress(now)
        return size != before

    def _judge(self, position: Position, has_progress: bool) -> Judged:
        first, last = self._samples[0], self._samples[-1]
        is_whole = last.at_seconds - first.at_seconds >= WINDOW_SECONDS
        if not last.processes:
            return Judged(verdict=Verdict.MOVING, words="has ended")
        if any(process.tracer_pid and _is_held(process) for process in last.processes):
            return Judged(verdict=Verdict.DEBUGGED, words="is held by a debugger")
        if has_progress or not is_whole or len(self._samples) < 2:
            return Judged(verdict=Verdict.MOVING, words="gets on" if has_progress else "has just begun")
        if measure_use(first, last).is_quiet:
            self._samples[-1] = describe_waits(last)
        judged = judge_window(tuple(self._samples), self.exits.seen, position.fronts)
        if judged.verdict not in (Verdict.MOVING, Verdict.STARVED) and _has_debugger(last):
            return dataclasses.replace(judged, verdict=Verdict.DEBUGGED, words="has a debugger in it")
        if judged.verdict is Verdict.DEADLOCK and self._has_others():
            return Judged(verdict=Verdict.TIMED, words="may wait for a process that left the tree")
        return judged

    def _has_others(self) -> bool:
        """Look, before a deadlock is believed, for processes that have left the tree and could still wake it."""
        return self._reader.also(member.pid for member in find_members(self._attempt, None) if not member.is_gone)

    def _rule(self, judged: Judged, now: float) -> Ruling:
        tree, is_waiting = self._samples[-1], judged.verdict not in (Verdict.MOVING, Verdict.STARVED)
        silence = Silence(
            phase=self._position.budget_phase,
            judged=judged,
            silent_seconds=self._clock.counted_seconds,
            passed_seconds=self._clock.silent_seconds(now),
            still_seconds=self._clock.still_seconds(now),
            verdict_seconds=self._clock.verdict_seconds(now),
            stacks_move=self._motions.moves,
            is_disk_alive=judged.verdict is Verdict.KERNEL
            and not waits_for_server(judged.words)
            and self._disk.is_alive(now),
            is_gpu_busy=is_waiting and self._gpu.is_busy(tree, now),  # costs a second, so only when it matters
        )
        ruling = rule(silence, self.budgets)
        if ruling.wants_stacks:
            since = now - self._clock.silent_seconds(now)
            self._motions.look(self._samples[0], tree, self._position.fronts, since)
        return ruling

    def _set_pace(self, judged: Judged, ruling: Ruling, cost_seconds: float) -> None:
        is_quiet = len(self._samples) > 1 and measure_use(self._samples[-2], self._samples[-1]).is_quiet
        self._is_close = is_quiet or ruling.wants_stacks or judged.verdict is not Verdict.MOVING
        if self._is_close:  # nobody's steps are slowed by it
            self.next_look_seconds = max(_QUIET_SECONDS, _MOST_COST_QUIET * cost_seconds)
        else:
            self.next_look_seconds = max(_MOVING_SECONDS, _MOST_COST * cost_seconds)

    def _told(self, judged: Judged, ruling: Ruling, now: float) -> Look:
        position, tree = self._position, self._samples[-1]
        silent = self._clock.silent_seconds(now)
        because = ruling.because
        if ruling.is_hung and judged.verdict is Verdict.STARVED:  # it got its time, and spun in it
            judged = dataclasses.replace(judged, verdict=Verdict.MOVING)
        if ruling.is_hung and len(position.fronts) > 1:
            standings = stand_all(self._samples[0], describe_waits(tree), position.fronts)
            judged = dataclasses.replace(judged, standings=standings)
            because = f"{because}; {rank_words(standings, self._beats.rank_of)}"
        return Look(
            phase=position.phase,
            step=position.step,
            steps=position.steps,
            judged=judged,
            words=judged.words + _wait_words(ruling, judged),
            resident_bytes=tree.resident_bytes,
            is_hung=ruling.is_hung,
            because=because,
            noticed_after_seconds=silent if ruling.is_hung else None,
            silent_seconds=silent,
            pids=tuple(process.pid for process in tree.processes),
        )


def _wait_words(ruling: Ruling, judged: Judged) -> str:
    """Since when something is waited for, where the words do not say it yet, and how long it may be."""
    if ruling.limit_seconds is None:
        return ""
    is_told = judged.silent_seconds is not None or ruling.waited_seconds < _TOLD_SECONDS
    since = "" if is_told else f" since {human_seconds(ruling.waited_seconds)}"
    return f"{since}; given up after {human_seconds(ruling.limit_seconds)}"


def _is_held(process: ProcessSample) -> bool:
    return any(thread.state == "t" for thread in process.threads)


def _has_debugger(tree: TreeSample) -> bool:
    """True for debuggers that work from inside, over the network."""
    lines = (read_command_line(process.pid) for process in tree.processes)
    return any(process.tracer_pid for process in tree.processes) or any(
        name in line for line in lines for name in _DEBUGGERS
    )
