"""A CUDA kernel read or wrote memory outside its own.

What you see: "an illegal memory access was encountered", "misaligned address" or "unspecified launch failure", mostly
at an unrelated line and often only after many steps.
Why: a kernel bug (an extension built for another CUDA or torch, an attention kernel at an odd shape, an index computed
in 32 bits) or, more rarely, an unstable or overheated card.
What we do: use the plain kernels (no compile, eager attention), then a smaller micro-batch, then the CPU.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="cuda-illegal-access",
    title="a CUDA kernel accessed memory outside its own",
    kind="crash",
    signs=(
        proves(
            "log",
            r"illegal memory access(?: was encountered)?|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|cuda runtime error \((?:77|700)\)|CUDA error\(?(?: |\()(?:77|700)\b",
        ),
        proves(
            "log",
            r"(?:CUDA|cuda|Cuda|Triton)\b.{0,60}misaligned address|CUDA_ERROR_MISALIGNED_ADDRESS|cudaErrorMisalignedAddress|cudaSuccess \(74 vs",
        ),
        proves("log", r"unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED"),
        proves(
            "log",
            r"CUDA error: (?:an illegal instruction was encountered|invalid program counter|hardware stack error|operation not supported on global/shared address space)|cudaErrorIllegalInstruction",
        ),
        proves(
            "log", r"Memory access fault by GPU node|Invalid __(?:global|shared|local)__ (?:read|write|atomic) of size"
        ),
        suggests(
            "log",
            r"NVRM: Xid .*: (?:13|31|43|45|48|63|74|79|94|95|119),|GPU has fallen off the bus|uncorrectable ECC error encountered|the launch timed out and was terminated",
        ),
    ),
    remedies=(
        Remedy(
            "run without compiled kernels",
            change={"compile": False, "TORCH_COMPILE_DISABLE": "1"},
            cost="slower if compile was on",
        ),
        Remedy("use plain attention", change={"attention": "eager"}, cost="slower, more memory for long texts"),
        Remedy(
            "halve the micro-batch", change={"micro_batch": "halve"}, cost="slightly slower; same effective batch size"
        ),
        Remedy("train on the CPU", change={"device": "cpu"}, cost="much slower"),
        Remedy(
            "rebuild CUDA extensions for the installed torch",
            command="pip install --no-build-isolation --no-binary :all: --force-reinstall PACKAGE",
        ),
        Remedy(
            "find the faulty kernel",
            command="CUDA_LAUNCH_BLOCKING=1 compute-sanitizer python train.py",
            cost="very slow; only for debugging",
        ),
    ),
    sources=(
        "NVIDIA/MinkowskiEngine#283",
        "skhu101/GauHuman#21",
        "zhoubolei/TRN-pytorch#88",
        "verl-project/verl#3579",
        "open-mmlab/mmrotate#500",
    ),
    over=("nccl-error", "nccl-timeout", "cublas-failure"),
    matches=(
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: cuda runtime error (77) : an illegal memory access was encountered at /pytorch/aten/src/THC/generic/THCTensorCopy.c:20",
        "RuntimeError: merge_sort: failed to synchronize: cudaErrorIllegalAddress: an illegal memory access was encountered",
        "Warning: CUDA warning: misaligned address (function destroyEvent)\nterminate called after throwing an instance of 'c10::CUDAError'\n  what():  CUDA error: misaligned address",
        "RuntimeError: CUDA error: unspecified launch failure",
        "[rank3]:[E923 11:14:11 ProcessGroupNCCL.cpp:1895] [PG ID 0 Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "F0925 14:07:56.489186 14091 math_functions.cu:79] Check failed: error == cudaSuccess (74 vs. 0)  misaligned address",
        "RuntimeError: CUDA error: an illegal instruction was encountered",
        "Memory access fault by GPU node-1 (Agent handle: 0x55d) on address 0x7f0. Reason: Page not present or supervisor privilege.",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4211, GPU has fallen off the bus.",
    ),
    near_misses=(
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "Illegal instruction (core dumped)",
        "Segmentation fault: address not mapped to object at address 0x18",
    ),
)
