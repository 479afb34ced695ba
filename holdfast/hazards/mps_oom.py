"""The Apple GPU ran out of memory.

What you see: "MPS backend out of memory (MPS allocated: ...)", "Invalid buffer size: 19.45 GB", or Metal's
`kIOGPUCommandBufferCallbackErrorOutOfMemory`.
Why: the CPU and GPU share memory, and torch stops at 1.7 times the size that Metal recommends. A single buffer has its
own, smaller limit. Batches of varying lengths also make the graph cache grow without bound.
What we do: use smaller micro-batches with the same effective batch, then recomputation, then the CPU. Removing the
limit (`PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0`) is not a remedy: the system swaps and then kills the process.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS

HAZARD = Hazard(
    slug="mps-oom",
    title="the Apple GPU ran out of memory",
    kind="error",
    signs=(
        proves("log", r"MPS backend out of memory|MPS allocated: [\d.]+ [kKMGT]i?B"),
        proves("log", r"kIOGPUCommandBufferCallbackErrorOutOfMemory|Insufficient Memory \(0+8\b"),
        proves("error", r"Invalid buffer size: [\d.]+ [kKMGT]i?B"),
        proves("log", r"(?:Failed|Unable) to (?:allocate|create) \w* ?(?:MTLBuffer|MTLHeap|Metal buffer)"),
        proves("log", r"\[(?:METAL|metal::malloc|malloc_or_wait)\][^\n]{0,160}(?:allocate|out of memory)"),
        suggests(
            "log",
            r"greater than the maximum allowed buffer size|exceeds? (?:the )?(?:device's )?max(?:imum)? buffer (?:length|size)",
        ),
        suggests(
            "error",
            r"(?i)out of memory|not enough memory|MemoryError",
            also=(ON_MPS,),
            unless=(seen("log", r"CUDA|cuda:\d"),),
        ),
    ),
    remedies=(
        Remedy(
            "use smaller micro-batches with more accumulation", change={"micro_batch": "halve"}, cost="somewhat slower"
        ),
        Remedy(
            "recompute activations in the backward pass",
            change={"gradient_checkpointing": True},
            cost="about a third slower",
        ),
        Remedy("train on the CPU", change={"device": "cpu"}, cost="slower"),
        Remedy(
            "pad to a few fixed lengths, to stop the graph cache growing",
            command="DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)",
            cost="some padding",
        ),
        Remedy(
            "truncate long texts",
            command="tokenizer(texts, truncation=True, max_length=512)",
            cost="the model sees shorter texts",
            keeps=False,
        ),
    ),
    sources=(
        "instructlab/instructlab#2568",
        "pytorch/pytorch#141909",
        "pytorch/pytorch#105839",
        "pytorch/pytorch#181213",
        "ml-explore/mlx-lm#236",
        "gensyn-ai/rl-swarm#59",
    ),
    over=("mps-crash",),
    matches=(
        "RuntimeError: MPS backend out of memory (MPS allocated: 33.48 GB, other allocations: 2.45 GB, max allowed: 36.27 GB). Tried to allocate 600.15 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        "RuntimeError: MPS backend out of memory (MPS allocated: 42.28 GiB, other allocations: 720.00 KiB, max allowed: 42.43 GiB). Tried to allocate 384.00 MiB on shared pool.",
        "RuntimeError: Invalid buffer size: 19.45 GB",
        "RuntimeError: Invalid buffer size: 36.00 GiB",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        Case(
            "Error: command buffer exited with error status.\n\tInsufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            "SIGABRT",
        ),
        "RuntimeError: Failed to allocate private MTLBuffer for size 4294967296",
        "RuntimeError: [METAL] Attempting to allocate 72253440000 bytes which is greater than the maximum allowed buffer size of 22613000192 bytes.",
    ),
    near_misses=(
        "RuntimeError: invalid low watermark ratio 1.4",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 MiB",
        "zsh: killed     python train.py",
        "MPSNDArray.mm:782: failed assertion `[MPSNDArray, initWithBuffer:descriptor:] Error: buffer is not large enough. Must be 20480 bytes '",
    ),
)
