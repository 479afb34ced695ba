"""The GPU does not have enough memory for this step.

What you see: "CUDA out of memory. Tried to allocate ...", in old versions "cuda runtime error (2) : out of memory".
Why: weights, optimizer state and the activations of one batch together exceed the card's memory. One long example or
fragmented memory can be enough.
What we do: let the allocator merge its free blocks, then halve the micro-batch and double the accumulation, then
recompute activations. The effective batch does not change.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

_PHRASE = r"(?:CUDA|HIP|XPU|GPU) out of memory"  # which people also write in ordinary text
_ERROR_FORMS = (
    r"(?:CUDA|HIP)(?: driver| runtime)? error(?: \(?2\)?)?:? out of memory"
    r"|CUDA failure 2: out of memory|error(?:=| \()2\)? ?: ?out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED|Out of memory error on GPU \d|Triton Error \[CUDA\]: out of memory"
)
OUT_OF_MEMORY = f"{_PHRASE}|{_ERROR_FORMS}"

HAZARD = Hazard(
    slug="cuda-oom",
    title="the GPU ran out of memory",
    kind="error",
    signs=(
        proves("error", _PHRASE),
        proves("log", _ERROR_FORMS),
        suggests("log", _PHRASE),
        proves("log", r"Tried to allocate [\d.]+ [KMG]iB(?: \(GPU|\. GPU|[\s\S]{0,80}total capaci?ty)"),
        # TensorFlow, JAX, MXNet and cupy word it differently.
        proves(
            "log", r"OOM when allocating tensor[\s\S]{0,200}(?:GPU|gpu):\d|cudaMalloc (?:re)?try failed: out of memory"
        ),
        proves("log", r"cupy[\w.]*OutOfMemoryError|cudaMalloc failed: out of memory"),
        suggests("error", r"RESOURCE_EXHAUSTED: .*[Oo]ut of memory"),
        # cuDNN tries its algorithms in turn and prints this if none got its workspace.
        suggests(
            "log",
            r"[Uu]nable to find a valid cuDNN algorithm|GET was unable to find an engine to execute this computation",
        ),
        suggests("log", r"No executable batch size found, reached zero"),
        suggests(
            "log", r"(?:ran|runs?|running) out of (?:GPU |CUDA |video )?memory", also=(seen("log", r"(?i)cuda|gpu"),)
        ),
        suggests("error", r"OutOfMemoryError\b", unless=(seen("log", r"MPS|DefaultCPUAllocator|java\."),)),
    ),
    remedies=(
        Remedy(
            "let the allocator merge its free blocks",
            change={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            cost="none (needs Linux and torch 2.1 or later)",
        ),
        Remedy(
            "halve the micro-batch and double the accumulation",
            change={"micro_batch": "halve"},
            cost="a little slower, the same effective batch",
        ),
        Remedy(
            "recompute activations in the backward pass instead of keeping them",
            change={"gradient_checkpointing": True},
            cost="about a third slower",
        ),
        Remedy("train on the CPU", change={"device": "cpu"}, cost="much slower"),
        Remedy(
            "shorten the longest examples",
            command="max_length=256, or cutoff_len, in the script's tokenizer call",
            keeps=False,
        ),
    ),
    sources=(
        "pytorch/pytorch#16417",
        "meijieru/crnn.pytorch#37",
        "huggingface/sentence-transformers#3145",
        "pytorch/pytorch#99699",
    ),
    matches=(
        "RuntimeError: CUDA out of memory. Tried to allocate 4.46 GiB (GPU 0; 7.93 GiB total capacity; 4.72 GiB already allocated; 2.41 GiB free; 11.21 MiB cached)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has a total capacity of 94.99 GiB of which 9.30 GiB is free. "
        "Including non-PyTorch memory, this process has 85.6 GiB memory in use. Of the allocated memory 83.1 GiB is allocated by PyTorch, and 1.2 GiB is reserved by PyTorch but unallocated.",
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
        "RuntimeError: cuda runtime error (2) : out of memory at /opt/conda/conda-bld/pytorch/work/torch/lib/THC/generic/THCStorage.cu:58",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "RuntimeError: No executable batch size found, reached zero.",
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        # In a container torch cannot tell its own process from others: "Process 412 has ..." may be the process itself.
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 94.00 MiB. GPU 0 has a total capacity of 14.75 GiB of which 57.06 MiB is free. "
        "Process 3746 has 14.69 GiB memory in use. Of the allocated memory 14.20 GiB is allocated by PyTorch, and 371.50 MiB is reserved by PyTorch but unallocated.",
        "OOM when allocating tensor with shape[64,128,768] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,294,967,296 bytes",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.",
        "epoch 1: the GPU ran out of memory",
    ),
    near_misses=(
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 384.00 KB, max allowed: 18.13 GB).",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes.",
        "Out of memory: Killed process 116013 (python) total-vm:1452108kB",
        "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation. See documentation for PYTORCH_CUDA_ALLOC_CONF",
    ),
)
