"""A check inside a CUDA kernel failed: an index, a class or a probability was out of range.

What you see: "CUDA error: device-side assert triggered", often at an unrelated line, and every later CUDA call fails
the same way.
Why: kernels run asynchronously, so the error appears at the next call that waits. The data contains an index outside
its table, a label outside the classes, or NaN instead of a probability.
What we do: run the same step on the CPU, where the same mistake raises a plain error at the right line.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="cuda-device-assert",
    title="a check inside a CUDA kernel failed",
    kind="error",
    signs=(
        proves(
            "log",
            r"device-side assert(?:ion)?s? (?:triggered|were)|\berror=(?:59|710)\b|cudaErrorAssert|CUDA_ERROR_ASSERT|\(?(?:error ?[=(] ?|CUDA error\()(?:59|710)\)?\s*[:,] ?device-side",
        ),
        # The kernel's own line; a truncated log may hold nothing else.
        proves("log", r"block: \[\d+, ?\d+, ?\d+\],? thread: \[\d+, ?\d+, ?\d+\]:? Assertion"),
        proves("log", r"_assert_async_cuda_kernel|Device-side assertion `.*' failed"),
        suggests("log", r"\.cuh?:\d+:.{0,400}Assertion `"),
        suggests("log", r"HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception"),
    ),
    remedies=(
        Remedy(
            "run one epoch on the CPU, which names the line and the value",
            change={"device": "cpu"},
            cost="much slower, until the data is fixed",
        ),
        Remedy(
            "make the GPU report the error where it happens",
            command="CUDA_LAUNCH_BLOCKING=1 python train.py",
            cost="slower; for finding the line only",
        ),
        Remedy("check labels, token ids and positions against the model's sizes", command="holdfast survey DATA"),
    ),
    sources=(
        "ultralytics/ultralytics#863",
        "KaihuaTang/Scene-Graph-Benchmark.pytorch#207",
        "pytorch/pytorch#9062",
        "milesial/Pytorch-UNet#258",
        "bubbliiiing/yolox-pytorch#121",
    ),
    over=("cublas-failure", "cuda-illegal-access", "nccl-error", "nccl-timeout"),
    matches=(
        "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
        '../aten/src/ATen/native/cuda/IndexKernel.cu:92: operator(): block: [3363,0,0], thread: [31,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.',
        "/opt/conda/conda-bld/pytorch/work/aten/src/ATen/native/cuda/Loss.cu:94: operator(): block: [0,0,0], thread: [96,0,0] Assertion `input_val >= zero && input_val <= one` failed.",
        "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.",
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCTensorCopy.cpp line=70 error=59 : device-side assert triggered",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n"
        "/pytorch/aten/src/ATen/native/cuda/ScatterGatherKernel.cu:144: operator(): block: [5,0,0], thread: [1,0,0] Assertion `idx_dim >= 0 && idx_dim < index_size` failed.",
        ":0:rocdevice.cpp:2660: Callback: Queue aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
    ),
    near_misses=(
        "RuntimeError: CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "AssertionError: Torch not compiled with CUDA enabled",
        "python: ../nptl/pthread_mutex_lock.c:81: __pthread_mutex_lock: Assertion `mutex->__data.__owner == 0' failed.",
    ),
)
