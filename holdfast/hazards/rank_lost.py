"""One rank of a distributed job ended, and the others failed because of it.

What you see: "Connection closed by peer" or "Connection reset by peer" from the ranks that were still working. If the
first rank ended without an error, the launcher names one of *those* as the root cause.
Why: every rank must take part in every step. A rank that exits early or is killed leaves the others in a collective
that can never complete.
What we do: record how each rank ended and in which order, name the first, and restart the whole job from its
checkpoint.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, suggests

HAZARD = Hazard(
    slug="rank-lost",
    title="one rank of the job ended and took the others with it",
    kind="crash",
    signs=(
        proves("sample", r"^rank \d+ \(pid \d+\) ended by code 0 .*while other ranks were at work"),
        suggests(
            "sample",
            r"^rank \d+ \(pid \d+\) ended by signal SIG(?!TERM|SEGV|ABRT|BUS|ILL|FPE)\w+ .*before the other ranks",
        ),
    ),
    remedies=(
        Remedy(
            "give every rank the same number of batches",
            command="DistributedSampler(dataset, drop_last=True)   # or: with Join([model]): ...",
        ),
        Remedy(
            "keep each rank's output separately", command="torchrun --redirects 3 --tee 3 --nproc-per-node 2 train.py"
        ),
    ),
    sources=("horovod/horovod#2907", "horovod/horovod#2908", "NVIDIA/Megatron-LM#1880"),
    matches=(
        Case(
            "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:33165: Connection reset by peer",
            "1",
            (
                "rank 1 (pid 32) ended by code 0 (pidfd), while other ranks were at work",
                "rank 0 (pid 31) ended by code 1 (pidfd)",
            ),
        ),
    ),
    near_misses=(
        "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:33165",
        Case(
            "ValueError: bad row",
            "1",
            ("rank 1 (pid 32) ended by code 1 (pidfd), before the other ranks",),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
