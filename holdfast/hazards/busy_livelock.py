"""The run keeps its processors busy and gets nowhere.

What you see: 100 % CPU, no step for many times the usual time, the same stack at every look.
Why: a loop that waits by asking again and again, a regular expression or a search that never ends, or a retry without a limit.
What we do: wait for many times the slowest step, then take the stacks, end it, and start again from the last checkpoint.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen

_GIVEN_UP = (seen("sample", r"^given up: "), seen("exit", r"hang"))

HAZARD = Hazard(
    slug="busy-livelock",
    title="the run is busy and makes no progress",
    kind="hang",
    signs=(proves("sample", r"^verdict (?:moving|starved): ", also=_GIVEN_UP),),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("do without compiled graphs", change={"compile": False}, cost="slower steps"),
        Remedy(
            "give each step more time, if it is only slow",
            command="holdfast run --step-timeout 600 -- COMMAND",
        ),
        Remedy("see where it turns", command="py-spy top --pid PID"),
    ),
    sources=("nerfstudio-project/nerfstudio#906", "marin-community/marin#6019"),
    matches=(
        Case(
            "step 40 loss 0.91",
            "hang",
            (
                "verdict moving: works (1.0 processors)",
                "given up: no step for 60 s, six times the slowest of the last steps",
            ),
        ),
    ),
    near_misses=(
        Case("step 40 loss 0.91", "hang", ("verdict moving: works (1.0 processors)",)),
        Case("step 40 loss 0.91", "hang", ("verdict sleeping: sleeps", "given up: no step for 300 s")),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
