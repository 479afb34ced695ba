"""The run keeps its processors busy but makes no progress.

What you see: 100% CPU, no step for many times the usual step time, the same stack in every sample.
Why: a busy-waiting loop, a regular expression or search that never finishes, or a retry without a limit.
What we do: wait for many times the slowest step, record the stacks, stop the run, and restart it from the last
checkpoint.
"""

from holdfast.core.observations import GivenUp, TreeVerdict, Verdict
from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, has_verdict, observed, proves

HAZARD = Hazard(
    slug="busy-livelock",
    title="the run is busy and makes no progress",
    kind="hang",
    signs=(proves(has_verdict(Verdict.MOVING), also=(observed(GivenUp), HUNG)),),
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
                TreeVerdict(verdict=Verdict.MOVING, cpu_share=1.0),
                GivenUp(reason="busy_stack_still", is_busy=True, phase="step", seconds=61.0, limit_seconds=60.0),
            ),
        ),
    ),
    near_misses=(
        Case("step 40 loss 0.91", "hang", (TreeVerdict(verdict=Verdict.MOVING, cpu_share=1.0),)),
        Case(
            "step 40 loss 0.91",
            "hang",
            (
                TreeVerdict(verdict=Verdict.SLEEPING),
                GivenUp(reason="wait_too_long", phase="step", seconds=300.0, limit_seconds=290.0),
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
