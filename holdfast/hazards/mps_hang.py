"""The program waits for the Apple GPU, which never responds.

What you see: no error, no progress, no CPU use; the stack is in `waitUntilCompleted`, `MPSStream::synchronize` or a
Python call that reads a value from the GPU, such as `.item()`, `.cpu()` or `.to(device)`.
Why: a command buffer faulted or was never committed, and the waiting thread is not notified. Reading events after an
explicit synchronize has the same effect, and so has Metal in a forked process.
What we do: stop the process and continue from the last checkpoint, on the CPU if it happens again.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.observations import ExitStatus
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import HUNG, Case, Hazard, Invited, observed, proves, seen, suggests
from holdfast.hazards.apple_gpu import MPS_WORD, ON_MPS

_CRASHED = observed(ExitStatus, lambda one: one.signal not in ("", "SIGINT", "SIGTERM", "SIGKILL"))
_GPU_WAIT = (
    r"waitUntil(?:Completed|Scheduled)|MPSStream::(?:synchronize|commit\w*|executeMPSGraph)|deviceSynchronize|waitForCpuSync"
    r"|_local_scalar_dense_mps|mps_copy_|copy_from_mps|copy_to_mps|MPSEvent|^synchronize \(.*torch[/\\]mps"
)
# How every waiting thread of macOS looks, whatever it waits for: with these frames known, one of the GPU must be too.
_SYSTEM_WAIT = seen(
    "frame",
    r"^(?:__psynch_\w+|semaphore_wait_trap|__ulock_wait\w*|__semwait_signal|__wait4|kevent|mach_msg\w*)",
)
_READS_FROM_GPU = seen("log", r"\.(?:item|cpu|numpy|tolist|synchronize|backward|to)\(|optimizer\.step")
_OTHER_WAIT = (
    seen(
        "frame",
        r"__kmp|gomp_|rayon|absl|arrow|tensorflow|connection\.py|queues?\.py|dataloader|_cpu_kernel|libtorch_cpu\.dylib\)",
    ),
    seen("log", r"mutex\.cc|RAW: Lock blocking|process just got forked"),
)


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    hung = next((trial for trial in facts.trials if trial.device.startswith("mps") and trial.outcome == "hang"), None)
    return (
        Invited(f"one training step on the Apple GPU never finished here: {hung.detail}", "blocker") if hung else None
    )


HAZARD = Hazard(
    slug="mps-hang",
    title="the program waits for the Apple GPU, which never responds",
    kind="hang",
    invited_by=invited_by,
    signs=(
        proves("frame", _GPU_WAIT, also=(HUNG,)),
        suggests("frame", _GPU_WAIT, unless=(_CRASHED, seen("log", r"failed assertion"))),
        suggests(
            "frame", r"at::(?:native::)?mps::|torch::mps::|\(MetalPerformanceShaders\w*\)|\(Metal\)", also=(HUNG,)
        ),
        suggests("log", r"MPSGraph\w*|_MTLCommandBuffer|specializeWithDevice", also=(HUNG,)),
        suggests("log", r"kIOGPUCommandBufferCallbackError(?:Hang|Timeout)", also=(HUNG,)),
        suggests("log", MPS_WORD, also=(HUNG,), unless=(*_OTHER_WAIT, _SYSTEM_WAIT)),
        suggests("error", r"KeyboardInterrupt", also=(ON_MPS, _READS_FROM_GPU), unless=_OTHER_WAIT),
    ),
    remedies=(
        Remedy("train on the CPU", change={"device": "cpu"}, cost="slower"),
        Remedy(
            "load weights one at a time, if the hang is during loading",
            change={"HF_DEACTIVATE_ASYNC_LOAD": "1"},
            cost="slower start",
        ),
        Remedy("install a newer torch", command="pip install --upgrade 'torch>=2.14'"),
    ),
    sources=(
        "pytorch/pytorch#144634",
        "pytorch/pytorch#141296",
        "pytorch/pytorch#162874",
        "Emmi-AI/noether#178",
        "huggingface/transformers#48029",
    ),
    over=("mps-crash",),
    matches=(
        Case(
            "* thread #1, queue = 'com.apple.main-thread', stop reason = signal SIGSTOP\n"
            "  * frame #0: 0x00000001aa919084 Metal`pthread_cond_wait + 12\n"
            "    frame #1: 0x00000001aa78b1b4 Metal`-[_MTLCommandBuffer waitUntilCompleted] + 84\n",
            "hang",
        ),
        Case("Using device: mps\nStarting training...\n  0%|          | 0/1248 [00:00<?, ?it/s]", "hang"),
        Case("GPU available: True (mps), used: True\nSanity Checking: |          | 0/? [00:00<?, ?it/s]", "hang"),
        Case(
            "Call graph:\n    2569 Thread_1447670   DispatchQueue_1: com.apple.main-thread  (serial)\n"
            "    + 2569 at::mps::MPSStream::synchronize(at::mps::SyncType)  (in libtorch_cpu.dylib) + 88  [0x11a2b3c4d]\n",
            "hang",
        ),
        Case("Error: command buffer exited with error status. (kIOGPUCommandBufferCallbackErrorTimeout)", "hang"),
        'device: mps\nTraceback (most recent call last):\n  File "train.py", line 9, in step\n    total += loss.item()\nKeyboardInterrupt',
    ),
    near_misses=(
        Case("    frame #0: 0x0000000187b126ec libsystem_kernel.dylib`__psynch_cvwait + 8\n", "hang"),
        Case(  # a lock of Python, as `sample` shows it
            "Using device: mps\nCall graph:\n    86 Thread_2140391   DispatchQueue_1: com.apple.main-thread  (serial)\n"
            "    + 86 lock_PyThread_acquire_lock  (in Python) + 72  [0x103b5a7c8]\n"
            "    +   86 PyThread_acquire_lock_timed  (in Python) + 596  [0x103b0f5d4]\n"
            "    +     86 __psynch_cvwait  (in libsystem_kernel.dylib) + 8  [0x18ab2d3cc]\n",
            "hang",
        ),
        Case(
            "Thread 4 Crashed::  Dispatch queue: metal gpu stream\n1   Metal   0x1a3213cb0 MTLReportFailure.cold.1 + 48\n",
            "SIGABRT",
        ),
        Case("Using device: mps\n{'train_runtime': 494.8, 'train_loss': 0.184, 'epoch': 1.0}", "0"),
        Case("[mutex.cc : 452] RAW: Lock blocking 0x15d5c5a58   @\nUsing device: mps", "hang"),
    ),
)
