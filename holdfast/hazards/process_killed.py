"""The run was killed externally, and not for lack of memory.

What you see: "Killed" or "Terminated", no traceback; the kernel counted no out-of-memory kill.
Why: a person, a batch system at its time limit, a cloud that takes a spot machine back, a session that was logged out,
or a memory guard such as systemd-oomd or earlyoom, which ends processes itself before the kernel would.
What we do: continue from the last checkpoint with the same settings: a kill does not mean that they are wrong.
"""

from holdfast.core.observations import KilledExternally, OomKill
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, observed, proves, seen, suggests
from holdfast.hazards.host_oom import MEMORY_GUARDS

_ASKED = observed(KilledExternally, lambda one: one.signal != "SIGKILL")

HAZARD = Hazard(
    slug="process-killed",
    title="the run was killed externally, and not by the kernel for lack of memory",
    kind="crash",
    over=("host-oom",),
    signs=(
        proves(observed(KilledExternally, lambda one: one.signal == "SIGKILL" and one.sender not in MEMORY_GUARDS)),
        # A script may also kill its own process group after an error, which is then in the log.
        proves(_ASKED, unless=(seen("error", r"."),)),
        suggests(_ASKED),
    ),
    remedies=(
        Remedy("check whether a memory guard did it", command="journalctl -u systemd-oomd -u earlyoom --since -1h"),
        Remedy("ask the batch system why", command="sacct -j JOBID --format=State,ExitCode,Reason"),
        Remedy("keep the run going when the session ends", command="holdfast run --detach -- COMMAND"),
    ),
    sources=(
        "systemd/systemd#23606",
        "mozilla/translations#562",
        "2i2c-org/infrastructure#2369",
        "rfjakob/earlyoom#67",
    ),
    matches=(
        Case("step 40 loss 0.91", "SIGKILL", (KilledExternally(signal="SIGKILL"),)),
        Case(
            "api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 32) of binary: /usr/bin/python3",
            "1",
            (KilledExternally(signal="SIGKILL", victim="rank", pid=32, rank=1),),
        ),
        Case("step 40 loss 0.91", "SIGTERM", (KilledExternally(signal="SIGTERM"),)),
    ),
    near_misses=(
        Case(
            "step 40 loss 0.91", "SIGKILL", (OomKill(kills=1, cgroup="/sys/fs/cgroup/job", limit_bytes=4_000_000_000),)
        ),
        Case("step 40 loss 0.91", "SIGKILL"),
        Case(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB",
            "SIGTERM",
            (KilledExternally(signal="SIGTERM"),),
        ),
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 178)",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
