"""A disk, most often a network disk, does not respond.

What you see: no error and no progress while data is read or a checkpoint is written; `ps` shows the state D, and the
process cannot even be killed until the disk responds.
Why: the server of a network or FUSE mount is gone, the device is failing, or the disk is so slow that a write takes
minutes.
What we do: wait for the phase's limit, stop what can be stopped, restart, and say what the process was waiting for.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.observations import OomKillerOff, ProcessView, RankVerdict, TreeVerdict, Verdict, Wait, WaitTarget
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, has_verdict, judged, observed, proves

_OTHER_CAUSE = (observed(OomKillerOff), observed(ProcessView, lambda one: bool(one.frozen_cgroup)))


def _waits_in_kernel(evidence: Evidence) -> Passage | None:
    """A Python process in the state D, in a table pasted from a run that hangs."""
    row = next((row for row in evidence.processes if row.state[0] == "D" and "python" in row.command), None)
    return Passage("log", row.line, f"pid {row.pid} is in state {row.state}") if row and evidence.is_hang else None


HAZARD = Hazard(
    slug="disk-stalled",
    title="a disk does not respond",
    kind="hang",
    signs=(
        proves(has_verdict(Verdict.KERNEL), unless=_OTHER_CAUSE),
        judged("suggests", _waits_in_kernel),
    ),
    remedies=(
        Remedy("see which mount does not respond", command="findmnt -t nfs,nfs4,fuse && dmesg | tail"),
        Remedy("detach a dead mount", command="umount -f -l MOUNTPOINT"),
        Remedy(
            "write checkpoints to a local disk and copy them afterwards",
            command="python train.py --output_dir /local/disk/run",
        ),
    ),
    sources=(
        "nfs-ganesha/nfs-ganesha#1327",
        "fflewddur/tophat#201",
        "aws/efs-utils#374",
        "libfuse/libfuse#509",
        "openzfs/zfs#7484",
    ),
    matches=(
        Case("   4211 jo        20   0   20.1g   3.1g 200000 D   0.0   9.8   0:12.01 python", "hang"),
        Case(
            "saving checkpoint-40",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.KERNEL,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.KERNEL,
                        wait=Wait(kind="kernel", target=WaitTarget.KERNEL, name="fuse_get_req"),
                    ),
                ),
            ),
        ),
    ),
    near_misses=(
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.WAIT_NET,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.WAIT_NET,
                        wait=Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.7:443", silent_seconds=70.0),
                    ),
                ),
            ),
        ),
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.KERNEL,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.KERNEL,
                        wait=Wait(kind="kernel", target=WaitTarget.KERNEL, name="mem_cgroup_oom_synchronize"),
                    ),
                ),
                OomKillerOff(cgroup="/sys/fs/cgroup/memory/job", limit_bytes=600_000_000),
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
