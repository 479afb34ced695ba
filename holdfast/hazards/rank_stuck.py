"""One rank of a distributed job is stuck, and the others wait for it.

What you see: no step; every rank but one is in `all_reduce` or `barrier`. Half an hour later the launcher ends the job
and names a rank that waited, not the one that was stuck.
Why: that rank sleeps, reads from something that does not respond, evaluates alone, or left the loop a step early.
What we do: check what each rank is waiting for, name the one that waits for something else, and restart the job.
"""

from holdfast.core.observations import GivenUp, RankVerdict, TreeVerdict, Verdict
from holdfast.core.plan import DUMP_STACKS, Remedy
from holdfast.hazards import Case, Hazard, has_verdict, observed, proves

_SEVERAL_RANKS = observed(TreeVerdict, lambda one: len(one.ranks) > 1 and one.ranks[0].rank is not None)
_KNOWN = (has_verdict(Verdict.STOPPED, Verdict.DEADLOCK, Verdict.DEBUGGED, Verdict.WAIT_NET, Verdict.KERNEL),)

HAZARD = Hazard(
    slug="rank-stuck",
    title="one rank of the job is stuck, and the others wait for it",
    kind="hang",
    over=("nccl-timeout",),
    signs=(proves(observed(GivenUp), also=(_SEVERAL_RANKS,), unless=_KNOWN),),
    remedies=(
        Remedy("see where that rank is stuck", command=DUMP_STACKS),
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
                TreeVerdict(
                    verdict=Verdict.SLEEPING,
                    ranks=(
                        RankVerdict(pid=32, rank=1, verdict=Verdict.SLEEPING),
                        RankVerdict(pid=31, rank=0, verdict=Verdict.TIMED),
                    ),
                ),
                GivenUp(reason="wait_too_long", phase="step", seconds=90.0, limit_seconds=90.0),
            ),
        ),
    ),
    near_misses=(
        Case(
            "step 20",
            "hang",
            (
                TreeVerdict(verdict=Verdict.SLEEPING),
                GivenUp(reason="wait_too_long", phase="step", seconds=90.0, limit_seconds=90.0),
            ),
        ),
        Case(
            "step 20",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.STOPPED,
                    ranks=(
                        RankVerdict(pid=32, rank=1, verdict=Verdict.STOPPED),
                        RankVerdict(pid=31, rank=0, verdict=Verdict.TIMED),
                    ),
                ),
                GivenUp(reason="verdict"),
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
