"""The program waits for itself: for a lock, queue or thread of its own that will never respond.

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
    title="the program waits for a lock, queue or thread of its own that never responds",
    kind="hang",
    signs=(
        proves(
            observed(OwnCode, lambda one: one.how == "waits_for_own_lock"),
            also=(has_verdict(Verdict.DEADLOCK),),
        ),
    ),
    over=("thread-deadlock",),
    remedies=(
        Remedy(
            "wait with a timeout at that line, so that it fails with a stack instead of hanging",
            command="lock.acquire(timeout=60)   # or queue.get(timeout=60)",
        ),
        Remedy(
            "use a reentrant lock, if one thread acquires it twice",
            command="threading.RLock()   # in place of threading.Lock()",
        ),
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
