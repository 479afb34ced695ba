"""Judges what a tree of processes is doing, from samples of a few seconds: moving, waiting for something, or stuck.

Pure: samples go in, a verdict comes out. A tree that uses no processor and moves no bytes is quiet; then what its
threads wait for decides. Waits are followed from the main thread of the process that trains: only a thread of its own
process can release a lock, only the other end can fill a pipe. Where no path leads to anything that can wake by
itself, the tree is deadlocked, and more time changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.core.observations import (
    RankVerdict,
    StuckProcess,
    TreeVerdict,
    Verdict,
    Wait,
    WaitingThread,
    WaitKind,
    WaitTarget,
)
from holdfast.supervisor.child_exits import ChildExit
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUse:
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
    *("TMonitor", "_RefreshThread", "_AsyncWriterThr"),  # of tqdm, rich and tensorboard, by their Python class
    "holdfast",
    *("jemalloc_bg", "gloo_tcp_loop", "pt_tcpstore", "pt_nccl", "cuda-Evt", "grpc_global_tim"),
)
_CRASH_LOOP_EXITS = 3  # in one window
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
# Of several training processes the worst verdict is the culprit's: those in a collective wait for a limited time.
_WORST_FIRST = (
    *(Verdict.DEBUGGED, Verdict.STOPPED, Verdict.DEADLOCK, Verdict.KERNEL, Verdict.WAIT_NET),
    *(Verdict.WAIT_INPUT, Verdict.SLEEPING, Verdict.MOVING, Verdict.TIMED),
)


def judge_window(
    samples: Sequence[TreeSample],
    exits: Iterable[ChildExit] = (),
    training_pids: Sequence[int] = (),
) -> TreeVerdict:
    """Judge a window of samples. `training_pids` are the processes that train, where known; else the root counts."""
    if len(samples) < 2 or not samples[-1].processes:
        return TreeVerdict(verdict=Verdict.MOVING, state="starting")
    first, last = samples[0], samples[-1]
    use = measure_use(first, last)
    failed = [item for item in exits if item.is_failure and item.at_seconds >= first.at_seconds]
    if len(failed) >= _CRASH_LOOP_EXITS and use.has_births:
        return TreeVerdict(
            verdict=Verdict.CRASH_LOOP,
            pids=tuple(item.pid for item in failed),
            failed_children=len(failed),
            window_seconds=use.seconds,
            child_exit=failed[-1].status,
        )
    if stopped := [
        process.pid for process in last.processes if _was_stopped(process.pid, samples, use.is_quiet, training_pids)
    ]:
        ranks = _quiet_ranks(first, last, training_pids)
        return TreeVerdict(verdict=Verdict.STOPPED, pids=tuple(stopped), ranks=ranks)
    if use.is_quiet:
        return _judge_quiet(first, last, training_pids)
    wanted = use.run_seconds + use.wait_seconds
    return TreeVerdict(
        main=_working_child(first, last, training_pids),
        verdict=Verdict.STARVED if use.is_starved else Verdict.MOVING,
        pids=(busiest(first, last).pid,),
        cpu_share=use.cpu_share,
        given_share=use.run_seconds / wanted if wanted > 0 else 1.0,
    )


def measure_use(first: TreeSample, last: TreeSample) -> TreeUse:
    """What the tree used between two samples."""
    before = {(process.pid, process.start_ticks): process for process in first.processes}
    threads = {thread.tid: thread for process in first.processes for thread in process.threads}
    cpu_seconds, run_ns, wait_ns, io_bytes, has_births = 0.0, 0, 0, 0, False
    for process in last.processes:
        earlier = before.get((process.pid, process.start_ticks))
        has_births = has_births or earlier is None
        io_bytes += process.io_bytes - (earlier.io_bytes if earlier else 0)
        wait_ns += process.wait_ns - (earlier.wait_ns if earlier else 0)
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
    return TreeUse(
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


def judge_ranks(first: TreeSample, last: TreeSample, training_pids: Iterable[int]) -> tuple[RankVerdict, ...]:
    """What each training process does, the one that holds up the others first."""
    threads = {thread.tid: thread for process in first.processes for thread in process.threads}
    seconds = max(last.at_seconds - first.at_seconds, 1e-3)
    busy = {}
    for process in last.processes:
        for thread in process.threads[:1]:
            share = (thread.run_ns - threads.get(thread.tid, thread).run_ns) / 1e9 / seconds
            if share > _BUSY_MAIN_SHARE:
                busy[process.pid] = share
    ranks = [
        RankVerdict(pid=one.pid, verdict=Verdict.MOVING, cpu_share=busy[one.pid]) if one.pid in busy else one
        for one in _quiet_ranks(first, last, training_pids)
    ]
    return tuple(sorted(ranks, key=lambda one: _WORST_FIRST.index(one.verdict)))


def _judge_quiet(first: TreeSample, last: TreeSample, training_pids: Sequence[int]) -> TreeVerdict:
    ranks = _quiet_ranks(first, last, training_pids)
    worst = min(ranks, key=lambda one: _WORST_FIRST.index(one.verdict))
    pids = tuple(one.pid for one in ranks if one.verdict == worst.verdict)
    return TreeVerdict(verdict=worst.verdict, pids=pids, main=worst, ranks=ranks)


def _working_child(first: TreeSample, last: TreeSample, training_pids: Sequence[int]) -> RankVerdict | None:
    """The training process when it only waits for another program that works; None when it works itself.

    A worker of the same program is not another program: it has the waits of the training, and its stack is read.
    """
    by_pid = {process.pid: process for process in last.processes}
    trainers = [pid for pid in training_pids if pid in by_pid] or [last.processes[0].pid]
    worker = busiest(first, last)
    if len(trainers) > 1 or worker.pid in trainers or not worker.is_other_program:
        return None
    wait = last.waits.get(trainers[0])
    line = [worker.pid]
    while line[-1] in by_pid and by_pid[line[-1]].parent_pid in by_pid and by_pid[line[-1]].pid != trainers[0]:
        line.append(by_pid[line[-1]].parent_pid)
    if wait is None or wait.kind != "tree" or not wait.wakers & set(line):
        return None
    helper = WaitingThread(
        pid=worker.pid, tid=worker.pid, name=worker.command, wait=Wait(kind="run", target=WaitTarget.NOTHING)
    )
    return RankVerdict(pid=trainers[0], verdict=Verdict.MOVING, wait=wait, helper=helper)


def is_waiting_process(first: TreeSample, last: TreeSample, training_pids: Sequence[int]) -> bool:
    """True when the main thread of the training process had no turn, so that others do the work."""
    pids = [process.pid for process in last.processes if process.pid in training_pids] or [last.processes[0].pid]
    turns = {thread.tid: thread.turns for process in first.processes for thread in process.threads}
    return len(pids) == 1 and all(
        turns.get(thread.tid) == thread.turns
        for process in last.processes
        for thread in process.threads[:1]
        if process.pid in pids
    )


def _quiet_ranks(first: TreeSample, last: TreeSample, training_pids: Iterable[int]) -> tuple[RankVerdict, ...]:
    by_pid = {process.pid: process for process in last.processes}
    pids = [pid for pid in training_pids if pid in by_pid] or [last.processes[0].pid]
    waits = _WaitGraph(first, last)
    return tuple(waits.judge(by_pid[pid]) for pid in pids)


class _WaitGraph:
    """Who waits for whom in one quiet tree."""

    def __init__(self, first: TreeSample, last: TreeSample):
        before = {thread.tid: thread.turns for process in first.processes for thread in process.threads}
        self._by_pid = {process.pid: process for process in last.processes}
        self._waits = dict(last.waits)
        for process in last.processes:
            for thread in process.threads:
                wait = self._waits.get(thread.tid)
                # A thread that had a turn since has just begun to wait: somebody does wake it. An alarm may, too.
                is_woken = before.get(thread.tid) != thread.turns or (process.has_alarm and thread.tid == process.pid)
                if wait and wait.kind == "lock" and is_woken:
                    self._waits[thread.tid] = replace(wait, kind="timed")

    def judge(self, process: ProcessSample) -> RankVerdict:
        """What a process does: what its main thread waits for in the end."""
        main = process.threads[0] if process.threads else None
        if main is None or main.tid not in self._waits:
            return RankVerdict(pid=process.pid, verdict=Verdict.TIMED)
        wait = self._waits[main.tid]
        if wait.kind == "run":
            return RankVerdict(pid=process.pid, verdict=Verdict.MOVING, wait=wait)
        reached = list(self._reached(process, main))
        outside = [item for item in reached if item[2].kind in _BY_KIND]
        if not outside:
            stuck = _stuck_process(reached)
            return RankVerdict(pid=process.pid, verdict=Verdict.DEADLOCK, wait=wait, stuck=stuck)
        # Of several that would do, the one that heard from outside last.
        other, thread, last_wait = min(
            outside, key=lambda item: (_KINDS.index(item[2].kind), item[2].silent_seconds or 0.0)
        )
        helper = WaitingThread(pid=other.pid, tid=thread.tid, name=thread.name, wait=last_wait)
        return RankVerdict(
            pid=process.pid,
            verdict=_BY_KIND[last_wait.kind],
            wait=wait,
            helper=helper if thread.tid != main.tid else None,
        )

    def _reached(self, start: ProcessSample, main: ThreadSample) -> Iterator[tuple[ProcessSample, ThreadSample, Wait]]:
        """Every thread that could, directly or through others, end the wait of a main thread; that one first."""
        seen, ahead = {main.tid}, [(start, main)]
        while ahead:
            process, thread = ahead.pop(0)
            wait = self._waits[thread.tid]
            yield process, thread, wait
            if wait.kind in _BY_KIND:
                continue  # it ends by itself; who else could help does not matter
            for pid in sorted(wait.wakers):
                if (other := self._by_pid.get(pid)) is None:
                    continue
                for waker in other.threads:
                    if waker.tid not in seen and waker.tid in self._waits and not self._is_service(other, waker):
                        seen.add(waker.tid)
                        ahead.append((other, waker))

    def _is_service(self, process: ProcessSample, thread: ThreadSample) -> bool:
        """True for threads that wake no other thread: monitors, idle servers, driver threads."""
        kind, is_main = self._waits[thread.tid].kind, thread.tid == process.pid
        # A driver thread is named after its creator; the torch thread that waits for the card has its own name.
        is_drivers = thread.name == process.command or thread.name.startswith(("python", "pt_main"))
        is_idle = kind == "listen" or (kind == "device" and is_drivers)
        return (is_idle and not is_main) or thread.name.startswith(SERVICE_THREADS)


def _stuck_process(reached: Iterable[tuple[ProcessSample, ThreadSample, Wait]]) -> StuckProcess | None:
    """The process at the end of the chain whose main thread waits for a lock; None when they wait for each other."""
    mains = [process for process, thread, wait in reached if thread.tid == process.pid and wait.kind == "lock"]
    return StuckProcess(pid=mains[-1].pid, command=mains[-1].command) if mains else None


def _was_stopped(pid: int, samples: Sequence[TreeSample], is_quiet: bool, training_pids: Sequence[int]) -> bool:
    """True when the main thread was stopped in every sample, by a signal and not by a debugger.

    While others work, only a training process counts: a stopped helper does not block the run.
    """
    if not is_quiet and pid not in training_pids:
        return False
    for sample in samples:
        process = next((item for item in sample.processes if item.pid == pid), None)
        if process is None or process.tracer_pid or not process.threads or process.threads[0].state != "T":
            return False
    return True
