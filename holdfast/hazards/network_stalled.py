"""A server that the run is connected to does not respond.

What you see: no error and no progress; the main thread waits in `recv`, in `ssl` or in a database driver.
Why: the connection is open but the other end is gone, overloaded, or behind a firewall that drops packets. Many clients
wait without a limit.
What we do: wait a minute for the next byte, then stop the run and restart it; work offline if possible.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves

HAZARD = Hazard(
    slug="network-stalled",
    title="a server does not respond, and the run waits without a limit",
    kind="hang",
    signs=(proves("sample", r"^verdict waits for the network: "),),
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
            ("verdict waits for the network: waits for 10.0.0.7:5000, nothing received for 70 s",),
        ),
    ),
    near_misses=(
        Case("", "hang", ("verdict sleeping: sleeps",)),
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
