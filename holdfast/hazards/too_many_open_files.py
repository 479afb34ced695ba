"""The process reached its limit of open files.

What you see: "OSError: [Errno 24] Too many open files", "received 0 items of ancdata", "Communication with the workers
is no longer possible".
Why: each tensor from a loader worker keeps a file descriptor open while the tensor exists. Batches kept in a list or
many workers exceed a limit of 256 (macOS) or 1024.
What we do: load data in the main process, and say how to raise the limit or share tensors by name.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, suggests

_MAC_DEFAULT = 256
_RAISE_LIMIT = Remedy("raise the limit in the shell that starts the run", command="ulimit -n 65536", cost="none")


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    limit = facts.open_file_limit
    if limit is not None and limit <= _MAC_DEFAULT:
        return Invited(f"only {limit} open files are allowed", "note", (_RAISE_LIMIT,))
    return None


HAZARD = Hazard(
    slug="too-many-open-files",
    title="the process reached its limit of open files",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"Too many open files"),
        proves("log", r"received 0 items of ancdata"),
        suggests("frame", r"^recvfds \(.*reduction"),
        proves("log", r"\[Errno 2[34]\]|os error 24\)|\bEMFILE\b"),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        _RAISE_LIMIT,
        Remedy(
            "share tensors by name instead of by file descriptor",
            command='torch.multiprocessing.set_sharing_strategy("file_system")',
            cost="files may be left in shared memory after a crash",
        ),
        Remedy(
            "keep copies instead of the loader's own tensors",
            command="kept.append(batch.clone())",
            cost="a little memory",
        ),
    ),
    sources=(
        "pytorch/pytorch#973",
        "facebookresearch/maskrcnn-benchmark#158",
        "facebookresearch/fairseq#87",
        "ultralytics/ultralytics#4413",
    ),
    matches=(
        "OSError: [Errno 24] Too many open files: '/tmp/pymp-tgep00l9'",
        "RuntimeError: received 0 items of ancdata",
        "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the limit using `ulimit -n` in the shell",
        "RuntimeError: unable to open shared memory object </torch_30997_2076642173> in read-write mode: Too many open files (24)",
        "safetensors_rust.SafetensorError: Error while opening: Too many open files (os error 24)",
        '  File "/usr/lib/python3.11/multiprocessing/reduction.py", line 164, in recvfds\n',
    ),
    near_misses=(
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_9_1_0>: No space left on device (28)",
        "OSError: [Errno 28] No space left on device",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
    ),
)
