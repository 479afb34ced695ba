"""One rank of a distributed job is stuck, and the others wait for it.

What you see: no step; every rank but one is in `all_reduce` or `barrier`. Half an hour later the launcher ends the job
and names a rank that waited, not the one that was stuck.
Why: that rank sleeps, reads from something that does not respond, evaluates alone, or left the loop a step early.
What we do: check what each rank is waiting for, name the one that waits for something else, and restart the job.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen

_KNOWN = (seen("sample", r"^verdict (?:stopped|deadlock|in a debugger|waits for the network|waits in the kernel): "),)

HAZARD = Hazard(
    slug="rank-stuck",
    title="one rank of the job is stuck, and the others wait for it",
    kind="hang",
    over=("nccl-timeout",),
    signs=(proves("sample", r"^given up: .*\brank \d+ \(process \d+\): .*holds the others up", unless=_KNOWN),),
    remedies=(
        Remedy("see where that rank is stuck", command="py-spy dump --native --pid PID"),
        Remedy(
            "let the other ranks time out sooner",
            command="torch.distributed.init_process_group(timeout=timedelta(minutes=5))",
            cost="a slow rank may be taken for a lost one",
        ),
    ),
    sources=("pytorch/pytorch#122694", "horovod/horovod#2908"),
    matches=(
        Case(
            "step 20",
            "hang",
            (
                "verdict sleeping: sleeps",
                "given up: sleeps; 90 s in phase step, where 90 s are allowed; rank 1 (process 32): sleeps, and holds the "
                "others up; rank 0 (process 31): waits for a lock",
            ),
        ),
    ),
    near_misses=(
        Case(
            "step 20",
            "hang",
            ("verdict sleeping: sleeps", "given up: sleeps; 90 s in phase step, where 90 s are allowed"),
        ),
        Case(
            "step 20",
            "hang",
            (
                "verdict stopped: is stopped",
                "given up: is stopped; rank 1 (process 32): is stopped, and holds the others up; rank 0 (process 31): waits",
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
