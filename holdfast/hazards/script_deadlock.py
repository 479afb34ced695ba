"""The program waits for one of its own locks, which nothing can release.

What you see: no error, no progress, no CPU use. The stack of the main thread ends in your own code, at a line such as
`with lock:`, `lock.acquire()`, `queue.get()` or `thread.join()`.
Why: a thread acquires a lock that it already holds (`threading.Lock` is not reentrant), two threads wait for each
other, or the thread that should respond has ended.
What we do: retry once in case it was chance, then stop and name the file and line. No setting changes your own locks.
"""

from holdfast.core.observations import CodePlace, OwnCode, RankVerdict, StuckProcess, TreeVerdict, Verdict
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, has_verdict, observed, proves

HAZARD = Hazard(
    slug="script-deadlock",
    title="the program waits for one of its own locks, which is never released",
    kind="hang",
    signs=(
        proves(
            observed(OwnCode, lambda one: one.how == "waits_for_own_lock"),
            also=(has_verdict(Verdict.DEADLOCK),),
        ),
    ),
    over=("thread-deadlock",),
    remedies=(
        Remedy("use a reentrant lock", command="threading.RLock()   # in place of threading.Lock()"),
        Remedy("wait with a timeout, so that it fails with a stack", command="lock.acquire(timeout=60)"),
    ),
    sources=("https://docs.python.org/3/library/threading.html#lock-objects",),
    matches=(
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(pid=41, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=41, command="python")),
                ),
                OwnCode(
                    how="waits_for_own_lock",
                    place=CodePlace(file="train.py", line=12, function="save", source="with lock:"),
                ),
            ),
        ),
    ),
    near_misses=(
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(pid=41, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=41, command="python")),
                ),
            ),
        ),
        Case("", "hang", (OwnCode(how="hung", place=CodePlace(file="train.py", line=12, function="save")),)),
        Case(
            "",
            "hang",
            (
                TreeVerdict(verdict=Verdict.SLEEPING),
                OwnCode(
                    how="waits_for_own_lock",
                    place=CodePlace(file="train.py", line=12, function="save", source="thread.join()"),
                ),
            ),
        ),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
