"""Far more threads or worker processes are running than the machine has processors.

What you see: a run that crawls or seems frozen while every core is busy; "This DataLoader will create 30 worker
processes"; "OpenBLAS blas_thread_init: pthread_create failed"; "can't start new thread".
Why: each process sizes its thread pools by the machine's cores, not by its share of them. With several workers, several
ranks or a container's quota, the threads mostly wait for each other.
What we do: use one thread per processor in total, and no more workers than processors.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import HUNG, Case, Hazard, Invited, judged, proves, seen, suggests

_CORES = r"(?i)(?:^(?:\$ )?nproc\n|CPU\(s\):\s*|cpu_count\w*(?:\(\))?\W{1,4}|processors?\W{1,4}|cores?\W{1,4})(\d{1,4})\b|\b(\d{1,4}) (?:CPU |physical |logical )?(?:cores|processors|vCPUs|CPUs)\b"
_THREADS = r"(?i)\bthreads:\s*(\d{2,6})\b|\b(\d{2,6}) (?:running |OpenMP |worker |active )?threads\b"
_CROWD_OF_THREADS = 10
_BARRIER = re.compile(r"barrier|do_spin|do_wait|__kmp_\w*(?:wait|yield|suspend)|sched_yield|kmp_flag|spin_lock")
_MOSTLY_WAITING = 0.4
_WORKERS = r"create (\d+) worker processes in total\. Our suggested max number of worker in current system is (\d+)"
_POOL_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_CROWD = 4  # so many times the processors is no longer a matter of taste
_HIGH_LOAD = 100.0
_SLOW_DATA_SECONDS = 10.0


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    cpus = facts.cpu_count
    if cpus is None:
        return None
    share = Remedy(f"use {cpus} threads", change={"threads": cpus, "OMP_NUM_THREADS": str(cpus)})
    if plan.threads is not None and plan.threads > cpus:
        return Invited(f"{plan.threads} threads on {cpus} processors", remedies=(share,))
    for variable in facts.variables:
        if variable.name in _POOL_VARIABLES and variable.value.isdigit() and int(variable.value) > cpus:
            return Invited(f"{variable.name}={variable.value} on {cpus} processors", remedies=(share,))
    if facts.cpu_count_physical is not None and cpus * 2 <= facts.cpu_count_physical and plan.threads is None:
        seen_here = f"this process may use {cpus} of {facts.cpu_count_physical} cores; libraries that count all cores start too many threads"
        return Invited(seen_here, "note", (share,))
    return None


def _crowd_of_workers(evidence: Evidence) -> Passage | None:
    """The loader's warning, if the number is far too high or the run then hung."""
    if evidence.ended_well:
        return None
    for match, passage in evidence.log.search(_WORKERS):
        asked, advised = int(match[1]), max(int(match[2]), 1)
        if asked >= _CROWD * advised or (asked > advised and evidence.is_hang):
            return passage
    return None


def _waits_for_data(evidence: Evidence) -> Passage | None:
    """Slow steps that mostly wait for the loader; the first step is always like that."""
    if evidence.ended_well:
        return None
    for match, passage in evidence.log.search(r"\btime: *(\d+(?:\.\d+)?),?\s+data(?:_time)?: *(\d+(?:\.\d+)?)"):
        step_seconds, data_seconds = float(match[1]), float(match[2])
        if data_seconds >= _SLOW_DATA_SECONDS and data_seconds >= 0.8 * step_seconds:
            return passage
    return None


def _high_load(evidence: Evidence) -> Passage | None:
    """A load average far above any usual number of processors."""
    if evidence.ended_well:
        return None
    for match, passage in evidence.log.search(r"load averages?: *(\d+(?:\.\d+)?)"):
        if float(match[1]) >= _HIGH_LOAD:
            return passage
    return None


def _threads_far_above_cores(evidence: Evidence) -> Passage | None:
    """A number of threads that is ten times the number of processors, both as the log prints them."""
    cores = [int(match[1] or match[2]) for match, _ in evidence.log.search(_CORES)]
    for match, passage in evidence.log.search(_THREADS):
        if cores and int(match[1] or match[2]) >= _CROWD_OF_THREADS * max(cores) > 0 and not evidence.ended_well:
            return passage
    return None


def _spins_at_barriers(evidence: Evidence) -> Passage | None:
    """A profile in which most time goes into waiting for other threads of the same pool."""
    waiting = [spot for spot in evidence.hotspots if _BARRIER.search(spot.function)]
    if sum(spot.share for spot in waiting) < _MOSTLY_WAITING:
        return None
    return Passage("log", waiting[0].line, f"{waiting[0].function}: {waiting[0].share:.0%} of the time")


HAZARD = Hazard(
    slug="thread-oversubscription",
    title="more threads or workers run than there are processors",
    kind="slow",
    invited_by=invited_by,
    over=("dataloader-deadlock",),
    signs=(
        proves("log", r"OpenBLAS blas_thread_init: (?:pthread_create|RLIMIT_NPROC)"),
        proves(
            "log",
            r"libgomp: Thread creation failed|OMP: Error #34\b|unable to allocate necessary resources for OMP thread",
        ),
        proves("log", r"precompiled NUM_THREADS exceeded|tried to allocate too many memory regions"),
        proves("error", r"can't start new thread"),
        suggests("log", r"(?:pthread_create|fork|thread::thread|clone)\b[^\n]{0,60}Resource temporarily unavailable"),
        suggests(
            "error",
            r"BlockingIOError: \[Errno (?:11|35)\] Resource temporarily unavailable",
            also=(seen("frame", r"_fork_exec|_execute_child|popen_fork|_launch|fork"),),
        ),
        suggests(
            "error",
            r"Resource temporarily unavailable",
            unless=(seen("log", r"socket|read\b|write could not complete|zmq"),),
        ),
        judged("suggests", _crowd_of_workers),
        suggests("log", r"excessive worker creation might get DataLoader", also=(HUNG,)),
        judged("suggests", _high_load),
        judged("suggests", _threads_far_above_cores),
        judged("suggests", _spins_at_barriers),
        judged("fallout", _waits_for_data),
    ),
    remedies=(
        Remedy("use fewer loader workers", change={"loader_workers": "halve"}, cost="none if there were too many"),
        Remedy(
            "give every library one thread",
            change={"threads": 1, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cost="slower if one process has the machine to itself",
        ),
        Remedy("raise the limit on processes", command="ulimit -u 8192"),
    ),
    sources=(
        "SlongLiu/query2labels#9",
        "pytorch/torchtitan#4038",
        "klauscc/VindLU#10",
        "eduardoAcunaEspinoza/Hy2DL#48",
        "facebookresearch/detectron2#3900",
        "MIC-DKFZ/nnUNet#1343",
    ),
    matches=(
        Case(
            "UserWarning: This DataLoader will create 30 worker processes in total. Our suggested max number of worker in current system is 2, which is smaller than what this DataLoader is going to create.",
            "hang",
        ),
        "CPU(s): 4\nThreads: 131 total, 130 running",
        "    62.11%  python   libgomp.so.1.0.0     [.] gomp_barrier_wait_end\n    20.30%  python   libtorch_cpu.so      [.] at::native::mul_kernel",
        "Function                     Module            CPU Time\n__kmp_fork_barrier           libiomp5.so       412.301s\nsgemm_kernel                 libmkl_avx2.so    12.010s",
        Case("Please be aware that excessive worker creation might get DataLoader running slow or even freeze", "hang"),
        "OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily unavailable",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "OpenBLAS warning: precompiled NUM_THREADS exceeded, adding auxiliary array for thread metadata.",
        "RuntimeError: can't start new thread",
        "Train Epoch: [0] [100/9000] eta: 4 days lr: 0.0001 time: 40.1906  data: 38.0570  max mem: 10768",
        " 10:14:02 up 12 days,  3:11,  4 users,  load average: 387.21, 355.10, 301.77",
        '  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch\n    self.pid = os.fork()\nBlockingIOError: [Errno 11] Resource temporarily unavailable',
        "OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable",
    ),
    near_misses=(
        Case(
            "UserWarning: This DataLoader will create 4 worker processes in total. Our suggested max number of worker in current system is 2, which is smaller than what this DataLoader is going to create.",
            "0",
        ),
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded",
        "The 'train_dataloader' does not have many workers which may be a bottleneck.",
    ),
)
