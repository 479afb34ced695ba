"""A server that the run has connected to does not answer.

What you see: no error and no progress; the main thread waits in `recv`, in `ssl` or in a database driver.
Why: the connection is open and the other end is gone, overloaded, or behind a firewall that drops what it does not know. Many
clients wait without a limit.
What we do: wait a minute for the next byte, then end the run and start again; work offline where that is possible.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves

HAZARD = Hazard(
    slug="network-stalled",
    title="a server does not answer, and the run waits for it without a limit",
    kind="hang",
    signs=(proves("sample", r"^verdict waits for the network: "),),
    remedies=(
        Remedy(
            "work offline",
            change={"offline": True, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"},
            cost="only what is on this machine can be used",
        ),
        Remedy("see who is at the other end", command="ss -tnp | grep PID"),
    ),
    sources=("huggingface/huggingface_hub#3312", "roboflow/rf-detr#100"),
    matches=(
        Case(
            "logging to the tracker",
            "hang",
            ("verdict waits for the network: waits for 10.0.0.7:5000, nothing received for 70 s",),
        ),
    ),
    near_misses=(
        Case("", "hang", ("verdict sleeping: sleeps",)),
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
