"""The program ended itself by a signal, from a line of its own.

What you see: "Aborted" or another signal, with a Python stack whose innermost line calls `os.abort()`.
Why: the program, or somebody who looked for a fault in it, wrote it so. It is no crash of native code.
What we do: try once more in case it was chance, then stop and name file and line.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves

HAZARD = Hazard(
    slug="script-abort",
    title="the program aborted by its own decision",
    kind="error",
    signs=(proves("sample", r"^ended itself at \S+:\d+"),),
    over=("segfault-other",),
    remedies=(
        Remedy("raise an exception there: it says why, and lets files be closed", command="raise SystemExit(1)"),
    ),
    sources=("https://docs.python.org/3/library/os.html#os.abort",),
    matches=(Case("Fatal Python error: Aborted", "SIGABRT", ("ended itself at train.py:12 in check: os.abort()",)),),
    near_misses=(
        Case("Fatal Python error: Aborted", "SIGABRT", ("crashed at train.py:12 in check",)),
        Case("terminate called after throwing an instance of 'std::runtime_error'", "SIGABRT"),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
