"""Threads of the run wait for a lock that is never released.

What you see: no error, no progress, no CPU use; every thread waits. A native stack ends in `pthread_mutex_lock`, a
Python one in `acquire`, `join` or `get`.
Why: two threads each hold the lock that the other needs, a thread waits for a lock that it holds itself, or a process
was forked while another thread held the lock, which then stays locked in the child forever.
What we do: restart from the last checkpoint with fewer threads and processes that could block each other.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, suggests

HAZARD = Hazard(
    slug="thread-deadlock",
    title="threads wait for a lock that is never released",
    kind="hang",
    signs=(
        proves("sample", r"waits for a mutex owned by thread \d+, .*: orphaned by fork"),
        proves("sample", r"waits for a mutex it holds itself: deadlock|each wait for a mutex that the other holds"),
        proves("sample", r"^verdict deadlock: "),
        suggests("error", r"_DeadlockError: deadlock detected by _ModuleLock"),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "start worker processes with spawn, so that they inherit no locks",
            change={"start_method": "spawn"},
            cost="a few seconds per worker",
        ),
        Remedy(
            "compute and tokenize on one thread",
            change={"threads": 1, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            cost="slower on the CPU",
        ),
        Remedy("see which thread holds which lock", command="py-spy dump --native --pid PID"),
    ),
    sources=(
        "python/cpython#74580",
        "python/cpython#102532",
        "python/cpython#84559",
        "spotify/luigi#534",
        "gperftools/gperftools#178",
    ),
    matches=(
        Case(
            "step 40 loss 0.91",
            "hang",
            (
                "verdict deadlock: process 41 (python) waits for a lock that nobody can release",
                "pid 41 python: threads 41 and 44 each wait for a mutex that the other holds: deadlock",
            ),
        ),
        Case(
            "",
            "hang",
            (
                "pid 52 python: 1 thread, waits for a lock in futex without timeout called by libc.so.6, forked without "
                "exec from pid 41, which has 3 threads, libtorch_cpu libgomp in maps",
                "pid 52 python: thread 52 waits for a mutex owned by thread 44, a thread of its parent pid 41: orphaned by fork",
            ),
        ),
    ),
    near_misses=(
        Case("", "hang", ("verdict sleeping: sleeps",)),
        Case("", "hang", ("verdict waits for the network: waits for 10.0.0.7:443, nothing received for 70 s",)),
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
