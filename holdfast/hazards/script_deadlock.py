"""The program waits for a lock of its own, and nothing else could release it.

What you see: no error, no progress, no processor time. The stack of the main thread ends at a line of your own, such as
`with lock:`, `lock.acquire()`, `queue.get()` or `thread.join()`.
Why: a lock is taken a second time by the thread that holds it (`threading.Lock` is not reentrant), two threads wait for each
other, or a thread that would answer has ended.
What we do: try once more in case it was chance, then stop and name file and line: no setting changes your own locks.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen

HAZARD = Hazard(
    slug="script-deadlock",
    title="the program waits for a lock of its own that nobody will release",
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
        Remedy(
            "use a lock that its holder may take again", command="threading.RLock()   # in place of threading.Lock()"
        ),
        Remedy("wait with a limit, so that it fails with a stack", command="lock.acquire(timeout=60)"),
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
