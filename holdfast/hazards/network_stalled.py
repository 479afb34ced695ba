"""A server that the run is connected to does not respond.

What you see: no error and no progress; the main thread waits in `recv`, in `ssl` or in a database driver.
Why: the connection is open but the other end is gone, overloaded, or behind a firewall that drops packets. Many clients
wait without a limit.
What we do: wait a minute for the next byte, then stop the run and restart it; work offline if possible.
"""

from holdfast.core.observations import RankVerdict, TreeVerdict, Verdict, Wait, WaitTarget
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, has_verdict, proves

HAZARD = Hazard(
    slug="network-stalled",
    title="a server does not respond, and the run waits without a limit",
    kind="hang",
    signs=(proves(has_verdict(Verdict.WAIT_NET)),),
    remedies=(
        Remedy(
            "work offline",
            change={"offline": True, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"},
            cost="only files on this machine can be used",
        ),
        Remedy("see which server is at the other end", command="ss -tnp | grep PID"),
    ),
    sources=("huggingface/huggingface_hub#3312", "roboflow/rf-detr#100"),
    matches=(
        Case(
            "logging to the tracker",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.WAIT_NET,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.WAIT_NET,
                        wait=Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.7:5000", silent_seconds=70.0),
                    ),
                ),
            ),
        ),
    ),
    near_misses=(
        Case("", "hang", (TreeVerdict(verdict=Verdict.SLEEPING),)),
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
