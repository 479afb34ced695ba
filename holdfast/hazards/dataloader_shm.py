"""The data loader's workers ran out of shared memory.

What you see: a worker dies with "Bus error", or torch cannot allocate a shared memory file, mostly within the first
batches.
Why: workers pass batches through shared memory, and a container often has only 64 MB of it. Older torch then dies with
a bus error; torch 2.x mostly reports "No space left on device (28)" for a file named /torch_...
What we do: load data in the main process, and say how to give the container more shared memory.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.observations import DiskSpace
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import human_bytes
from holdfast.hazards import Case, Hazard, Invited, ended_by, fallout, observed, proves, seen, suggests

_TORCH_FILE = r"</?torch_[^>\n]*>"
_OPEN_FILES = (seen("log", r"Too many open files|\(24\)|\[Errno 24\]"),)
# Seen live: gigabytes are free, so shared memory is not what ran out.
_ROOM = (observed(DiskSpace, lambda one: one.is_shared_memory and one.free_bytes >= 1_000_000_000),)
_NCCL = (seen("log", r"NCCL WARN|nccl-shm"),)


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.shm_bytes is not None and facts.shm_bytes <= 64 * 1024 * 1024:  # Docker's default
        return Invited(f"only {human_bytes(facts.shm_bytes)} of shared memory; loader workers can fill it", "note")
    return None


HAZARD = Hazard(
    slug="dataloader-shm",
    title="the data loader's workers ran out of shared memory",
    kind="crash",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"unable to (?:allocate|write to|resize|mmap|open|map)[^\n]{0,160}(?:shared memory|/torch_)[^\n]{0,160}(?:No space left|\(28\)|\(12\))",
        ),
        proves("log", r"dataloader's workers are out of shared memory"),
        proves(observed(DiskSpace, lambda one: one.is_shared_memory and one.is_full)),
        # Torch only guesses here ("this might be caused by"), and a truncated memory-mapped file looks the same.
        suggests("log", r"Unexpected bus error encountered in worker", unless=_ROOM),
        suggests("log", r"DataLoader worker\s*\(?[^)\n]{0,80}\)* is killed by signal: Bus error", unless=_ROOM),
        suggests(
            "log",
            rf"unable to (?:allocate|write to|resize|open|mmap)[^\n]{{0,160}}{_TORCH_FILE}(?![^\n]{{0,160}}No such file)",
            unless=_OPEN_FILES,
        ),
        suggests("log", rf"[Cc]ouldn't (?:open|map) shared file mapping: {_TORCH_FILE}(?:, error code: <14\d\d>)?"),
        suggests("error", r"torch_shm_manager", unless=_OPEN_FILES),
        suggests(
            "error",
            r"\[Errno 28\]",
            also=(seen("log", r"/dev/shm|SemLock|synchronize\.py|multiprocessing/heap"),),
            unless=_NCCL,
        ),
        suggests(
            "error",
            r"(?i)bus error|SIGBUS",
            also=(seen("log", r"(?i)/dev/shm|shared memory|\bshm\b|shmem|data ?loader|num_workers"),),
            unless=_ROOM,
        ),
        fallout(ended_by("SIGBUS"), unless=(seen("log", r"(?i)macos|darwin|\.dylib|objc|\bzsh\b"), *_ROOM)),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("give the container more shared memory", command="docker run --shm-size=8g ..."),
        Remedy(
            "in Kubernetes, mount a memory volume over /dev/shm",
            command="volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]",
        ),
    ),
    sources=(
        "pytorch/pytorch#5040",
        "pytorch/pytorch#25730",
        "pytorch/pytorch#1355",
        "facebookresearch/maskrcnn-benchmark#103",
        "msr-fiddle/pipedream#28",
    ),
    over=("disk-full",),
    matches=(
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_9_1_0>: No space left on device (28)",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: unable to write to file </torch_1321_1900>",
        "RuntimeError: unable to open shared memory object </torch_29_13961> in read-write mode",
        "RuntimeError: DataLoader worker (pid 27) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        "RuntimeError: Couldn't open shared file mapping: <torch_13684_4004_0>, error code: <1455>",
        "RuntimeError: unable to mmap 134217728 bytes from file </torch_55_12_3>: Cannot allocate memory (12)",
        "NOTE: The SHMEM allocation limit is set to the default of 64MB.\nBus error (core dumped)",
        Case("Epoch 0:   0%|          | 0/313 [00:00<?, ?it/s]", "SIGBUS"),
        Case("", "1", (DiskSpace(folder="/dev/shm", free_bytes=0, total_bytes=67108864),)),
        'RuntimeError: torch_shm_manager at "/venv/lib/python3.11/site-packages/torch/bin/torch_shm_manager": error while loading shared libraries',
        '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device',
    ),
    near_misses=(
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        "RuntimeError: unable to open shared memory object </torch_5962_40818> in read-write mode: Too many open files (24)",
        "NOTE: The SHMEM allocation limit is set to the default of 64MB. This may be insufficient for PyTorch.",
        "OSError: [Errno 28] No space left on device: '/home/user/out/checkpoint-500'",
        "node08:27106 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        Case(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "1",
            (DiskSpace(folder="/dev/shm", free_bytes=25_300_000_000, total_bytes=25_300_000_000),),
        ),
    ),
)
