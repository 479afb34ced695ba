"""A pool keeps restarting workers that die immediately.

What you see: one core busy, no progress, the same error many times or none at all; `ps` keeps showing new process ids.
Why: a pool replaces a worker that died. If every worker dies at startup (a script without its main guard, a missing
library, a broken import), that never ends.
What we do: count the children's exit codes, and restart without worker processes.
"""

from holdfast.core.observations import ExitStatus, TreeVerdict, Verdict
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, has_verdict, proves

HAZARD = Hazard(
    slug="worker-crash-loop",
    title="a pool keeps restarting workers that die immediately",
    kind="hang",
    signs=(proves(has_verdict(Verdict.CRASH_LOOP)),),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("start worker processes with fork", change={"start_method": "fork"}, cost="locks are inherited"),
        Remedy("put the script's code under the main guard", command="if __name__ == '__main__': main()"),
    ),
    sources=("kwuking/TimeMixer#21", "AgileRL/AgileRL#286"),
    matches=(
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.CRASH_LOOP, failed_children=14, window_seconds=5.0, child_exit=ExitStatus(code=1)
                ),
            ),
        ),
    ),
    near_misses=(
        Case("", "hang", (TreeVerdict(verdict=Verdict.MOVING, cpu_share=1.0),)),
        Case(
            "RuntimeError: \n        An attempt has been made to start a new process before the\n"
            "        current process has finished its bootstrapping phase.",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.CRASH_LOOP, failed_children=14, window_seconds=5.0, child_exit=ExitStatus(code=1)
                ),
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
