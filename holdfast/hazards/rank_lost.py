"""One rank of a distributed job ended, and the others failed because of it.

What you see: "Connection closed by peer" or "Connection reset by peer" from the ranks that were still working. If the
first rank ended without an error, the launcher names one of *those* as the root cause.
Why: every rank must take part in every step. A rank that exits early or is killed leaves the others in a collective
that can never complete.
What we do: record how each rank ended and in which order, name the first, and restart the whole job from its
checkpoint.
"""

from holdfast.core.observations import ExitStatus, ProcessExit
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, observed, proves, suggests

_OTHER_SIGNALS = ("", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")  # a request to end, or a crash


def _was_killed(status: ExitStatus) -> bool:
    return status.signal not in _OTHER_SIGNALS


HAZARD = Hazard(
    slug="rank-lost",
    title="one rank of the job ended and took the others with it",
    kind="crash",
    signs=(
        proves(observed(ProcessExit, lambda one: one.is_first and one.status.code == 0)),
        suggests(observed(ProcessExit, lambda one: one.is_first and _was_killed(one.status))),
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
                ProcessExit(pid=32, name="python", rank=1, status=ExitStatus(code=0), is_first=True),
                ProcessExit(pid=31, name="python", rank=0, status=ExitStatus(code=1)),
            ),
        ),
        Case(
            "", "1", (ProcessExit(pid=91, name="python", status=ExitStatus(signal="SIGKILL"), rank=1, is_first=True),)
        ),
    ),
    near_misses=(
        "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:33165",
        Case(
            "ValueError: bad row",
            "1",
            (ProcessExit(pid=32, name="python", rank=1, status=ExitStatus(code=1), is_first=True),),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
