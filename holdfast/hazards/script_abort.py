"""The program killed itself with a signal from its own code.

What you see: "Aborted" or another signal, with a Python stack whose innermost line calls `os.abort()`.
Why: somebody wrote that call on purpose, perhaps for debugging. Native code did not crash.
What we do: retry once in case it was chance, then stop and name the file and line.
"""

from holdfast.core.observations import CodePlace, OwnCode
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, observed, proves

HAZARD = Hazard(
    slug="script-abort",
    title="the program aborted on purpose",
    kind="error",
    signs=(proves(observed(OwnCode, lambda one: one.how == "ended_itself")),),
    over=("segfault-other",),
    remedies=(
        Remedy(
            "change the line that sends the signal: an exception gives a reason and lets files be closed",
            command="grep -n -e os.abort -e os.kill -e raise_signal train.py",
            needs_script=True,
        ),
    ),
    sources=("https://docs.python.org/3/library/os.html#os.abort",),
    matches=(
        Case(
            "Fatal Python error: Aborted",
            "SIGABRT",
            (
                OwnCode(
                    how="ended_itself", place=CodePlace(file="train.py", line=12, function="check"), call="os.abort()"
                ),
            ),
        ),
    ),
    near_misses=(
        Case(
            "Fatal Python error: Aborted",
            "SIGABRT",
            (OwnCode(how="crashed", place=CodePlace(file="train.py", line=12, function="check")),),
        ),
        Case("terminate called after throwing an instance of 'std::runtime_error'", "SIGABRT"),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
