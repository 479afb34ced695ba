"""Says what a tree of processes is doing, from samples of a few seconds: moving, waiting for something, or stuck.

Pure: samples go in, a verdict comes out. A tree that uses no processor and moves no bytes is quiet; then it counts what
its threads wait for. Waits are followed from the main thread of the process that trains: a lock can only be released by
a thread of its own process, a pipe filled by its other end. Where no path leads to anything that can wake by itself,
the tree is deadlocked, and more time changes nothing.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.supervisor.child_exits import ChildExit
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample, Wait, WaitKind


class Verdict(StrEnum):
    """What a tree of processes does."""

    MOVING = "moving"
    STARVED = "starved"  # it would run, but gets no processor
    SLEEPING = "sleeping"
    WAIT_NET = "waits for the network"
    WAIT_INPUT = "waits for input"
    KERNEL = "waits in the kernel"
    STOPPED = "stopped"
    TIMED = "waits for a limited time"
    DEADLOCK = "deadlock"
    CRASH_LOOP = "crash loop"
    DEBUGGED = "in a debugger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one training process stands."""

    pid: int
    verdict: Verdict
    words: str
    is_own_timer: bool = False  # its main thread itself sleeps, or waits for a limited time
    silent_seconds: float | None = None  # since the network last gave a byte, where that is what it waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict with what it rests on."""

    verdict: Verdict
    words: str  # "waits for 127.0.0.1:8443, nothing received for 70 s"
    pids: tuple[int, ...] = ()  # the processes that show it
    silent_seconds: float | None = None  # since the network last gave a byte, where that is what is waited for
    is_own_timer: bool = False  # the main thread itself sleeps, or waits for a limited time
    given_share: float = 1.0  # of the processor time that the tree wanted, how much it got
    standings: tuple[Standing, ...] = ()  # one for each training process, when the tree is quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a tree used between two samples."""

    seconds: float
    cpu_share: float  # of one processor
    run_seconds: float
    wait_seconds: float  # runnable, without a processor
    io_bytes: int
    has_births: bool

    @property
    def is_quiet(self) -> bool:
        """True when nothing was computed, moved or begun."""
        wait_share = self.wait_seconds / self.seconds
        return self.cpu_share < 0.02 and wait_share < 0.05 and self.io_bytes < 65_536 and not self.has_births

    @property
    def is_starved(self) -> bool:
        """True when the tree hardly ever got a processor."""
        return self.wait_seconds > 4 * self.run_seconds and self.wait_seconds > 0.05 * self.seconds


# Threads that libraries keep for themselves: they wake and sleep whatever the training does.
SERVICE_THREADS = (
    *("TMonitor", "_AsyncWriterThr"),  # of tqdm and tensorboard, by their Python class
    *("jemalloc_bg", "gloo_tcp_loop", "pt_tcpstore", "pt_nccl", "cuda-Evt", "grpc_global_tim"),
)
_FRUITLESS_EXITS = 3  # in one window
_BUSY_MAIN_SHARE = 0.2
_REAL_TURN_NS = 50_000
_COARSE_SECONDS = 0.03
_NEW = ThreadSample(tid=0, name="", state="R")
_BY_KIND: Mapping[WaitKind, Verdict] = {
    "traced": Verdict.DEBUGGED,
    "stopped": Verdict.STOPPED,
    "kernel": Verdict.KERNEL,
    "device": Verdict.KERNEL,
    "net": Verdict.WAIT_NET,
    "sleep": Verdict.SLEEPING,
    "listen": Verdict.WAIT_NET,
    "input": Verdict.WAIT_INPUT,
    "timed": Verdict.TIMED,
    "run": Verdict.TIMED,  # caught in one of its short turns; the tree as a whole is quiet
}
_KINDS = tuple(_BY_KIND)  # the first of these that is reached decides
# Of several training processes the one that stands worst is the culprit. Those in a collective wait for a limited time.
_WORST_FIRST = (
    *(Verdict.DEBUGGED, Verdict.STOPPED, Verdict.DEADLOCK, Verdict.KERNEL, Verdict.WAIT_NET),
    *(Verdict.WAIT_INPUT, Verdict.SLEEPING, Verdict.MOVING, Verdict.TIMED),
)


def judge_window(
    samples: Sequence[TreeSample],
    exits: Iterable[ChildExit] = (),
    fronts: Sequence[int] = (),
) -> Judged:
    """Judge a window of samples. `fronts` are the processes that train, where that is known; else the root counts."""
    if len(samples) < 2 or not samples[-1].processes:
        return Judged(verdict=Verdict.MOVING, words="has just begun")
    first, last = samples[0], samples[-1]
    use = measure_use(first, last)
    fruitless = [item for item in exits if item.is_failure and item.at_seconds >= first.at_seconds]
    if len(fruitless) >= _FRUITLESS_EXITS and use.has_births:
        pids = tuple(item.pid for item in fruitless)
        words = f"{len(fruitless)} of its children ended in failure within {use.seconds:.0f} s, {fruitless[-1].words}"
        return Judged(verdict=Verdict.CRASH_LOOP, words=words, pids=pids)
    if stopped := [
        process.pid for process in last.processes if _was_stopped(process.pid, samples, use.is_quiet, fronts)
    ]:
        words = f"process {stopped[0]} is stopped (SIGSTOP)"
        return Judged(
            verdict=Verdict.STOPPED, words=words, pids=tuple(stopped), standings=_standings(first, last, fronts)
        )
    if use.is_quiet:
        return _judge_quiet(first, last, fronts)
    wanted = use.run_seconds + use.wait_seconds
    share = use.run_seconds / wanted if wanted > 0 else 1.0
    if use.is_starved:
        words = f"gets hardly any processor time: {share:.0%} of what it wants"
        return Judged(verdict=Verdict.STARVED, words=words, given_share=share, pids=(busiest(first, last).pid,))
    words = f"works ({use.cpu_share:.1f} processors)"
    return Judged(verdict=Verdict.MOVING, words=words, given_share=share, pids=(busiest(first, last).pid,))


def measure_use(first: TreeSample, last: TreeSample) -> Use:
    """What the tree used between two samples."""
    before = {(process.pid, process.start_ticks): process for process in first.processes}
    threads = {thread.tid: thread for process in first.processes for thread in process.threads}
    cpu_seconds, run_ns, wait_ns, io_bytes, has_births = 0.0, 0, 0, 0, False
    for process in last.processes:
        earlier = before.get((process.pid, process.start_ticks))
        has_births = has_births or earlier is None
        io_bytes += process.io_bytes - (earlier.io_bytes if earlier else 0)
        all_ns = 0
        for thread in process.threads:
            known = threads.get(thread.tid, _NEW)
            ran_ns = thread.run_ns - known.run_ns
            all_ns += ran_ns
            if thread.name.startswith(SERVICE_THREADS):
                continue
            run_ns += ran_ns
            # One that wants a processor for microseconds at a time is no work held up.
            if ran_ns >= _REAL_TURN_NS * (thread.turns - known.turns):
                wait_ns += thread.wait_ns - known.wait_ns
        # Threads and children that have ended are counted only here, in hundredths of a second.
        ended = process.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0) - all_ns / 1e9
        cpu_seconds += ended if ended > _COARSE_SECONDS else 0.0
    seconds = max(last.at_seconds - first.at_seconds, 1e-3)
    run_seconds = max(run_ns / 1e9, 0.0)
    return Use(
        seconds=seconds,
        cpu_share=(run_seconds + cpu_seconds) / seconds,
        run_seconds=run_seconds,
        wait_seconds=max(wait_ns / 1e9, 0.0),
        io_bytes=max(io_bytes, 0),
        has_births=has_births,
    )


def busiest(first: TreeSample, last: TreeSample) -> ProcessSample:
    """The process that used most of the processors between two samples."""
    before = {process.pid: process.cpu_seconds for process in first.processes}
    return max(last.processes, key=lambda process: process.cpu_seconds - before.get(process.pid, 0.0))


def stand_all(first: TreeSample, last: TreeSample, fronts: Iterable[int]) -> tuple[Standing, ...]:
    """Where each training process stands, also when some of them are busy; the one that holds the others up first."""
    threads = {thread.tid: thread for process in first.processes for thread in process.threads}
    seconds = max(last.at_seconds - first.at_seconds, 1e-3)
    busy = {}
    for process in last.processes:
        for thread in process.threads[:1]:
            share = (thread.run_ns - threads.get(thread.tid, thread).run_ns) / 1e9 / seconds
            if share > _BUSY_MAIN_SHARE:
                busy[process.pid] = share
    standings = [
        dataclasses.replace(one, verdict=Verdict.MOVING, words=f"is busy ({busy[one.pid]:.0%} of a processor)")
        if one.pid in busy
        else one
        for one in _standings(first, last, fronts)
    ]
    return tuple(sorted(standings, key=lambda one: _WORST_FIRST.index(one.verdict)))


def rank_words(standings: Sequence[Standing], rank_of: Callable[[int], object]) -> str:
    """Say of each training process where it stands, the first of them as the one that holds the others up."""
    said = []
    for one in standings:
        rank = rank_of(one.pid)
        who = f"process {one.pid}" if rank is None else f"rank {rank} (process {one.pid})"
        said.append(f"{who}: {one.words}")
    return f"{said[0]}, and holds the others up; " + "; ".join(said[1:])


def _judge_quiet(first: TreeSample, last: TreeSample, fronts: Sequence[int]) -> Judged:
    standings = _standings(first, last, fronts)
    worst = min(standings, key=lambda standing: _WORST_FIRST.index(standing.verdict))
    pids = tuple(standing.pid for standing in standings if standing.verdict == worst.verdict)
    silent = worst.silent_seconds
    words = worst.words if silent is None else f"{worst.words}, nothing received for {silent:.0f} s"
    return Judged(
        verdict=worst.verdict,
        words=words,
        pids=pids,
        silent_seconds=silent,
        is_own_timer=worst.is_own_timer,
        standings=standings,
    )


def _standings(first: TreeSample, last: TreeSample, fronts: Iterable[int]) -> tuple[Standing, ...]:
    by_pid = {process.pid: process for process in last.processes}
    wanted = [pid for pid in fronts if pid in by_pid] or [last.processes[0].pid]
    follower = _Follower(first, last)
    return tuple(follower.stand(by_pid[pid]) for pid in wanted)


class _Follower:
    """Follows waits through one quiet tree."""

    def __init__(self, first: TreeSample, last: TreeSample):
        before = {thread.tid: thread.turns for process in first.processes for thread in process.threads}
        self._by_pid = {process.pid: process for process in last.processes}
        self._waits = dict(last.waits)
        for process in last.processes:
            for thread in process.threads:
                wait = self._waits.get(thread.tid)
                # One that had a turn since has just begun to wait: somebody does wake it. An alarm may, too.
                is_woken = before.get(thread.tid) != thread.turns or (process.has_alarm and thread.tid == process.pid)
                if wait and wait.kind == "lock" and is_woken:
                    self._waits[thread.tid] = dataclasses.replace(wait, kind="timed")

    def stand(self, front: ProcessSample) -> Standing:
        """Where a process stands: what its main thread waits for in the end."""
        main = front.threads[0] if front.threads else None
        if main is None or main.tid not in self._waits:
            return Standing(pid=front.pid, verdict=Verdict.TIMED, words="nothing runs")
        if self._waits[main.tid].kind == "run":
            return Standing(pid=front.pid, verdict=Verdict.MOVING, words="has begun to work")
        reached = list(self._reached(front, main))
        outside = [item for item in reached if item[2].kind in _BY_KIND]
        if not outside:
            return Standing(pid=front.pid, verdict=Verdict.DEADLOCK, words=self._deadlock_words(front, reached))
        # Of several that would do, the one that heard from outside last.
        process, thread, wait = min(
            outside, key=lambda item: (_KINDS.index(item[2].kind), item[2].silent_seconds or 0.0)
        )
        words = wait.words
        if thread.tid != main.tid:
            whose = f"its thread {thread.tid}" if process.pid == front.pid else f"process {process.pid}"
            words = f"{self._waits[main.tid].words}, while {whose} ({thread.name}) {wait.words}"
        is_own_timer = thread.tid == main.tid and wait.kind in ("sleep", "timed")
        return Standing(
            pid=front.pid,
            verdict=_BY_KIND[wait.kind],
            words=words,
            is_own_timer=is_own_timer,
            silent_seconds=wait.silent_seconds,
        )

    def _reached(self, front: ProcessSample, main: ThreadSample) -> Iterator[tuple[ProcessSample, ThreadSample, Wait]]:
        """Every thread that could, directly or through others, end the wait of a main thread; that one first."""
        seen, ahead = {main.tid}, [(front, main)]
        while ahead:
            process, thread = ahead.pop(0)
            wait = self._waits[thread.tid]
            yield process, thread, wait
            if wait.kind in _BY_KIND:
                continue  # it goes on by itself; who else could help does not matter
            for pid in sorted(wait.wakers):
                if (other := self._by_pid.get(pid)) is None:
                    continue
                for waker in other.threads:
                    if waker.tid not in seen and waker.tid in self._waits and not self._is_service(other, waker):
                        seen.add(waker.tid)
                        ahead.append((other, waker))

    def _is_service(self, process: ProcessSample, thread: ThreadSample) -> bool:
        """True for threads that wake nobody: monitors, idle servers, those of a card's driver."""
        kind, is_main = self._waits[thread.tid].kind, thread.tid == process.pid
        # A driver's threads have the name of whoever made them; one of torch that waits for the card has its own.
        is_drivers = thread.name == process.command or thread.name.startswith(("python", "pt_main"))
        is_idle = kind == "listen" or (kind == "device" and is_drivers)
        return (is_idle and not is_main) or thread.name.startswith(SERVICE_THREADS)

    def _deadlock_words(self, front: ProcessSample, reached: list[tuple[ProcessSample, ThreadSample, Wait]]) -> str:
        mains = [(process, wait) for process, thread, wait in reached if thread.tid == process.pid]
        stuck = [process for process, wait in mains if wait.kind == "lock"]
        words = "nothing outside can wake any of its threads"
        if not stuck:
            return f"its processes wait for each other; {words}"
        where = stuck[-1]
        waiting = f"; process {front.pid} waits for it" if where.pid != front.pid else ""
        return f"process {where.pid} ({where.command}) waits for a lock that nobody can release{waiting}"


def _was_stopped(pid: int, samples: Sequence[TreeSample], is_quiet: bool, fronts: Sequence[int]) -> bool:
    """True when the main thread was stopped in every sample, by a signal and not by a debugger.

    While others work, only a process that trains counts: a helper that somebody stopped holds nobody up.
    """
    if not is_quiet and pid not in fronts:
        return False
    for sample in samples:
        process = next((item for item in sample.processes if item.pid == pid), None)
        if process is None or process.tracer_pid or not process.threads or process.threads[0].state != "T":
            return False
    return True
