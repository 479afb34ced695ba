"""The program waits for one of its own locks, which nothing can release.

What you see: no error, no progress, no CPU use. The stack of the main thread ends in your own code, at a line such as
`with lock:`, `lock.acquire()`, `queue.get()` or `thread.join()`.
Why: a thread acquires a lock that it already holds (`threading.Lock` is not reentrant), two threads wait for each
other, or the thread that should respond has ended.
What we do: retry once in case it was chance, then stop and name the file and line. No setting changes your own locks.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen

HAZARD = Hazard(
    slug="script-deadlock",
    title="the program waits for one of its own locks, which is never released",
    kind="hang",
    signs=(
        proves(
            "sample",
            r"^waits for a lock of the program's own at \S+:\d+",
            also=(seen("sample", r"^verdict deadlock: "),),
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
                "verdict deadlock: process 41 (python) waits for a lock that nobody can release",
                "waits for a lock of the program's own at train.py:12 in save: with lock:",
            ),
        ),
    ),
    near_misses=(
        Case("", "hang", ("verdict deadlock: process 41 (python) waits for a lock that nobody can release",)),
        Case("", "hang", ("stands at train.py:12 in save",)),
        Case(
            "",
            "hang",
            ("verdict sleeping: sleeps", "waits for a lock of the program's own at train.py:12 in save: thread.join()"),
        ),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
