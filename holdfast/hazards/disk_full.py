"""The disk, or the quota on it, is full.

What you see: "No space left on device"; or, from `torch.save`, only "unexpected pos 8389568 vs 8389520",
"PytorchStreamWriter failed writing file" or "iostream error", none of which mentions the disk.
Why: every checkpoint holds the weights plus two copies for the optimizer, caches keep each model twice, and a failed
save leaves a broken file under the final name.
What we do: estimate the space that checkpoints need, keep the newest two and the best, and delete before writing.
"""

from holdfast.core.evidence import Evidence, Seen
from holdfast.core.facts import MachineFacts
from holdfast.core.observations import DiskSpace, ExitStatus, LastPhase, ProcessExit
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import human_bytes
from holdfast.hazards import Case, Hazard, Invited, ended_by, judged, observed, proves, seen, suggests

_LITTLE_BYTES = 5 * 10**9  # a 400 MB model needs about 1.2 GB per checkpoint, and three of them
_NOTHING_BYTES = 500 * 10**6
_ROLES = {"output": "the output folder", "cache": "the model cache", "temp": "the temporary folder"}


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    tight = [disk for disk in facts.disks if disk.free_bytes < _LITTLE_BYTES or disk.free_inodes == 0]
    if not tight:
        return None
    places = "; ".join(f"{human_bytes(disk.free_bytes)} left for {_ROLES[disk.role]} ({disk.path})" for disk in tight)
    is_hopeless = any(disk.free_bytes < _NOTHING_BYTES or disk.free_inodes == 0 for disk in tight)
    return Invited(places, "blocker" if is_hopeless else "warning")


# Shared memory, semaphores and file watchers report the same error number, but they are not disks.
_A_DISK = r"^(?![^\n]*(?:/dev/shm|shared memory|</torch_\d|shm_|inotify|posix_fallocate))[^\n]*"
_NOT_A_DISK = (seen("frame", r"multiprocessing.(?:synchronize|heap|shared_memory)"),)


_FULL = observed(DiskSpace, lambda one: one.is_full and not one.is_shared_memory)
_OUTPUT_FULL = observed(DiskSpace, lambda one: one.is_full and not one.is_shared_memory and one.is_output)
_SAVING = observed(LastPhase, lambda one: one.phase in ("save", "export"))


def _no_room_while_saving(evidence: Evidence) -> Seen | None:
    """A file system used by the run is full, and a write failed. `torch.save` does not say why it failed."""
    full = _FULL.find(evidence)
    wrote = seen(
        "error", r"(?i)iostream|\bwrite|written|unexpected pos|serializ|\bsav(?:e|ing)|Errno 28|central directory"
    )
    is_saving = _SAVING.find(evidence) or seen("frame", r"^_?save\w* \(").find(evidence)
    # Without disk space its last message is missing too.
    is_mute = not evidence.errors and _OUTPUT_FULL.find(evidence)
    return full if wrote.find(evidence) or is_saving or is_mute else None


HAZARD = Hazard(
    slug="disk-full",
    title="the disk is full",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            _A_DISK
            + r"(?:No space left on (?:the )?device|StorageFull|ENOSPC|[Nn]ot enough space on the disk|WinError 112)",
            unless=_NOT_A_DISK,
        ),
        proves("error", _A_DISK + r"(?:Errno|os error|errno =|code:) 28\b", unless=_NOT_A_DISK),
        proves("log", r"Disk quota exceeded|Errno 122\b|os error 122\b|[Qq]uota exceeded"),
        proves(
            "log",
            r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\][^\n]*unexpected pos|unexpected pos \d+ vs \d+",
        ),
        proves("log", r"database or disk is full|Not enough disk space|Not enough free disk space"),
        proves(
            "error",
            r"(?i)(?:insufficient|not enough|out of|no more|ran out of|low) (?:free )?(?:disk|storage) space|disk (?:is )?full",
        ),
        judged("proves", _no_room_while_saving),
        # Memory mapped from a file that no longer fits on the disk.
        suggests(_FULL, also=(ended_by("SIGBUS"),)),
        suggests(_FULL, also=(observed(ProcessExit, lambda one: one.status.signal == "SIGBUS"),)),
        suggests("log", r"basic_ios::clear: iostream error"),
        suggests(
            "log",
            r"write\(\): fd \d+ failed with|wrote (?:only )?\d+ (?:of|blocks instead of) \d+|\d requested and \d+ written",
        ),
        suggests(
            "log",
            r"\bFile \S+ cannot be opened",
            also=(seen("log", r"torch\.save|zipfile_writer|PyTorchFileWriter|save"),),
        ),
        suggests(
            "error",
            r"\[Errno 5\] Input/output error|Input/output error",
            also=(seen("log", r"(?i)\bsav(?:e|ing)|checkpoint|\.write\("),),
        ),
        suggests("log", r"No usable temporary directory found"),
    ),
    remedies=(
        Remedy(
            "keep fewer checkpoints",
            command="TrainingArguments(save_total_limit=2)",
            cost="fewer checkpoints to go back to",
        ),
        Remedy(
            "see what fills the model cache and delete what you do not need", command="hf cache ls && hf cache prune"
        ),
        Remedy(
            "put caches and temporary files on a disk with free space",
            command="export HF_HOME=/big/disk/hf TMPDIR=/big/disk/tmp",
        ),
        Remedy(
            "save weights without the optimizer",
            command="TrainingArguments(save_only_model=True)",
            cost="a resumed run starts with a fresh optimizer",
            keeps=False,
        ),
    ),
    sources=(
        "Sachini/ronin#51",
        "YuanGongND/ast#30",
        "databrickslabs/dolly#139",
        "pytorch/pytorch#10577",
        "OpenNMT/OpenNMT-py#373",
    ),
    matches=(
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: [enforce fail at inline_container.cc:298] . unexpected pos 322619584 vs 322619480",
        "RuntimeError: [enforce fail at inline_container.cc:300] . PytorchStreamWriter failed writing file data/104: file write failed",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
        "RuntimeError: write(): fd 29 failed with Input/output error",
        "OSError: [Errno 122] Disk quota exceeded",
        "    torch.save(state, path)\nRuntimeError: File out/checkpoint_0.pt cannot be opened.",
        "OSError: Not enough disk space. Needed: 38.23 GiB (download: 15.72 GiB, generated: 22.51 GiB)",
        Case(
            "RuntimeError: basic_ios::clear: iostream error",
            "1",
            (DiskSpace(folder="/runs/07", free_bytes=0, total_bytes=10_000_000),),
        ),
        Case("", "1", (DiskSpace(folder="/runs/07", free_bytes=0, total_bytes=10_000_000, is_output=True),)),
        Case(
            "Fatal Python error: Bus error",
            "SIGBUS",
            (DiskSpace(folder="/runs/07", free_bytes=0, total_bytes=10_000_000),),
        ),
        Case(
            "",
            "SIGKILL",
            (
                DiskSpace(folder="/out", free_bytes=0, total_bytes=500, is_output=True),
                ProcessExit(pid=7, name="python", status=ExitStatus(signal="SIGBUS")),
            ),
        ),
        "saving checkpoint to /mnt/out/last.pt\nOSError: [Errno 5] Input/output error",
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp']",
    ),
    near_misses=(
        "RuntimeError: unable to write to file </torch_2_1_0>: No space left on device (28)",
        "RuntimeError: Parent directory out/models does not exist.",
        Case("KeyError: 'text'", "1", (DiskSpace(folder="/runs/07", free_bytes=0, total_bytes=10_000_000),)),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 MiB",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
