"""The run keeps its processors busy but makes no progress.

What you see: 100% CPU, no step for many times the usual step time, the same stack in every sample.
Why: a busy-waiting loop, a regular expression or search that never finishes, or a retry without a limit.
What we do: wait for many times the slowest step, record the stacks, stop the run, and restart it from the last
checkpoint.
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
        Remedy("run without compiled graphs", change={"compile": False}, cost="slower steps"),
        Remedy(
            "allow more time per step, if the run is only slow",
            command="holdfast run --step-timeout 600 -- COMMAND",
        ),
        Remedy("see where it spins", command="py-spy top --pid PID"),
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
