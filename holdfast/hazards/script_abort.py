"""The program killed itself with a signal from its own code.

What you see: "Aborted" or another signal, with a Python stack whose innermost line calls `os.abort()`.
Why: somebody wrote that call on purpose, perhaps for debugging. Native code did not crash.
What we do: retry once in case it was chance, then stop and name the file and line.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves

HAZARD = Hazard(
    slug="script-abort",
    title="the program aborted on purpose",
    kind="error",
    signs=(proves("sample", r"^ended itself at \S+:\d+"),),
    over=("segfault-other",),
    remedies=(
        Remedy(
            "raise an exception there instead: it gives a reason and lets files be closed",
            command="raise SystemExit(1)",
        ),
    ),
    sources=("https://docs.python.org/3/library/os.html#os.abort",),
    matches=(Case("Fatal Python error: Aborted", "SIGABRT", ("ended itself at train.py:12 in check: os.abort()",)),),
    near_misses=(
        Case("Fatal Python error: Aborted", "SIGABRT", ("crashed at train.py:12 in check",)),
        Case("terminate called after throwing an instance of 'std::runtime_error'", "SIGABRT"),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
