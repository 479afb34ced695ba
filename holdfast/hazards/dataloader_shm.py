"""The data loader's workers run out of shared memory.

What you see: a worker dies with "Bus error", or torch cannot allocate a shared memory file, mostly within the first batches.
Why: workers hand batches over through shared memory, and a container often gets only 64 MB of it.
What we do: load in the main process; tell the user how to give the container more.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import human_bytes
from holdfast.hazards import Hazard, Invited, proves, seen, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    need = plan.loader_workers * plan.prefetch_batches * plan.batch_bytes
    if facts.shm_bytes is None:
        return None
    if facts.shm_bytes < need:
        return Invited(f"{human_bytes(facts.shm_bytes)} of shared memory, about {human_bytes(need)} needed")
    if facts.shm_bytes <= 64 * 1024 * 1024:  # Docker's default
        return Invited(f"only {human_bytes(facts.shm_bytes)} of shared memory; loader workers fill that", "note")
    return None


HAZARD = Hazard(
    slug="dataloader-shm",
    title="the data loader's workers ran out of shared memory",
    kind="crash",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"unable to (?:allocate|write to|resize|mmap)[^\n]*shared memory[^\n]*(?:No space left|\(28\)|\(12\))",
        ),
        # Only "suggests": torch itself words this as a guess, and a memory-mapped file cut short looks the same.
        suggests("log", r"Unexpected bus error encountered in worker"),
        suggests("log", r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Bus error"),
        suggests("error", r"Bus error|SIGBUS", also=(seen("log", r"/dev/shm|shared memory|\bshm\b"),)),
        proves("sample", r"shm_free_bytes=\d{1,6}\b"),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("give the container more shared memory", command="docker run --shm-size=8g ..."),
    ),
    sources=("pytorch/pytorch#5040", "pytorch/pytorch#25730"),
    matches=(
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_9_1_0>: No space left on device (28)",
    ),
    near_misses=("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",),
)
