"""A disk, most often a network disk, does not respond.

What you see: no error and no progress while data is read or a checkpoint is written; `ps` shows the state D, and the
process cannot even be killed until the disk responds.
Why: the server of a network or FUSE mount is gone, the device is failing, or the disk is so slow that a write takes
minutes.
What we do: wait for the phase's limit, stop what can be stopped, restart, and say what the process was waiting for.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen

_NOT_MEMORY = (seen("sample", r"OOM killer is switched off"), seen("sample", r"frozen by cgroup"))

HAZARD = Hazard(
    slug="disk-stalled",
    title="a disk does not respond",
    kind="hang",
    signs=(proves("sample", r"^verdict waits in the kernel: ", unless=_NOT_MEMORY),),
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
        Case("saving checkpoint-40", "hang", ("verdict waits in the kernel: waits in the kernel (fuse_get_req)",)),
    ),
    near_misses=(
        Case("", "hang", ("verdict waits for the network: waits for 10.0.0.7:443, nothing received for 70 s",)),
        Case(
            "",
            "hang",
            (
                "verdict waits in the kernel: waits in the kernel (mem_cgroup_oom_synchronize)",
                "cgroup /sys/fs/cgroup/memory/job is out of memory and its OOM killer is switched off, limit 600.0 MB",
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
