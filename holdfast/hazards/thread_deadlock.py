"""Threads of the run wait for a lock that is never released.

What you see: no error, no progress, no CPU use; every thread waits. A native stack ends in `pthread_mutex_lock`, a
Python one in `acquire`, `join` or `get`.
Why: two threads each hold the lock that the other needs, a thread waits for a lock that it holds itself, or a process
was forked while another thread held the lock, which then stays locked in the child forever.
What we do: restart from the last checkpoint with fewer threads and processes that could block each other.
"""

from holdfast.core.observations import (
    MutexWait,
    ProcessView,
    RankVerdict,
    StuckProcess,
    TreeVerdict,
    Verdict,
    Wait,
    WaitTarget,
)
from holdfast.core.plan import DUMP_STACKS, Remedy
from holdfast.hazards import Case, Hazard, has_verdict, observed, proves, suggests

HAZARD = Hazard(
    slug="thread-deadlock",
    title="threads wait for a lock that is never released",
    kind="hang",
    signs=(
        proves(observed(MutexWait)),
        proves(has_verdict(Verdict.DEADLOCK)),
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
        Remedy("see which thread holds which lock", command=DUMP_STACKS),
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
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(pid=41, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=41, command="python")),
                ),
                MutexWait(pid=41, command="python", tid=41, owner_tid=44, how="mutual"),
            ),
        ),
        Case(
            "",
            "hang",
            (
                ProcessView(
                    pid=52,
                    command="python",
                    wait=Wait(kind="lock", target=WaitTarget.LOCK),
                    system_call="futex",
                    has_timeout=False,
                    caller="libc.so.6",
                    forked_from=41,
                    parent_threads=3,
                    libraries=("libtorch_cpu", "libgomp"),
                ),
                MutexWait(pid=52, command="python", tid=52, owner_tid=44, how="orphaned_by_fork", parent_pid=41),
            ),
        ),
        "_frozen_importlib._DeadlockError: deadlock detected by _ModuleLock('transformers.models') at 140230",
    ),
    near_misses=(
        Case("", "hang", (TreeVerdict(verdict=Verdict.SLEEPING),)),
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.WAIT_NET,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.WAIT_NET,
                        wait=Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.7:443", silent_seconds=70.0),
                    ),
                ),
            ),
        ),
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
