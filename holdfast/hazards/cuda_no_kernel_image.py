"""The installed build has no code for this GPU's generation.

What you see: "no kernel image is available for execution on the device", or torch's warning "sm_120 is not compatible
with the current PyTorch installation".
Why: a build contains machine code for some GPU generations only. A newer card needs a newer build; an old card needs
one that still supports it. An extension may have been compiled on another machine.
What we do: say which build fits, and train on the CPU until it is installed.
"""

from holdfast.core.facts import MachineFacts, release
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

# Oldest and newest generation that wheels for each CUDA version support (pytorch/pytorch release notes 1.7 to 2.9).
# A card runs code for an earlier minor version of its own generation: 8.6 runs code built for 8.0.
_NEWEST_BY_CUDA = (((12, 8), (12, 99)), ((11, 8), (9, 99)), ((11,), (8, 99)), ((9,), (7, 99)), ((0,), (6, 99)))
_OLDEST_BY_CUDA = (((13,), (7, 5)), ((12, 8), (7,)), ((12,), (5,)), ((0,), (3,)))


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.torch is None or facts.torch.cuda is None or plan.device not in ("auto", "cuda"):
        return None
    cuda = release(facts.torch.cuda)
    newest = next(limit for since, limit in _NEWEST_BY_CUDA if cuda >= since)
    oldest = next(limit for since, limit in _OLDEST_BY_CUDA if cuda >= since)
    for gpu in facts.gpus:
        capability = release(gpu.capability)
        if gpu.kind == "cuda" and capability and not (oldest <= capability <= newest):
            build = f"torch {facts.torch.version} for CUDA {facts.torch.cuda}"
            return Invited(f"{gpu.name} has compute capability {gpu.capability}; {build} has no code for it", "blocker")
    return None


HAZARD = Hazard(
    slug="cuda-no-kernel-image",
    title="the installed build has no code for this GPU",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"no ke?r?nel image (?:is|was|are)? ?available|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU|cuda runtime error \((?:48|209)\)",
        ),
        proves("log", r"device kernel image is invalid|cudaErrorInvalidKernelImage|CUDA_ERROR_INVALID_IMAGE"),
        proves(
            "log",
            r"(?:CUDA|cuda|_cuda|im2col|col2im)\b.{0,60}: ?invalid device function|cudaErrorInvalidDeviceFunction|cuda runtime error \((?:8|98)\)|error ?= ?(?:8|98) : invalid device function",
        ),
        proves("log", r"FATAL: kernel `?\S+`? is for sm\d+(?:-sm\d+)?, but was built for sm\d+"),
        proves(
            "log",
            r"CUDNN_STATUS_ARCH_MISMATCH|hipErrorNoBinaryForGpu|hipErrorInvalidDeviceFunction|HIP error: (?:invalid device function|no kernel image)",
        ),
        proves("log", r"nvrtc: error: invalid value for --gpu-architecture"),
        suggests(
            "log",
            r"with CUDA capability sm_\d+ is not compatible with|The current PyTorch install supports CUDA capabilities|PyTorch no longer supports this GPU",
        ),
        suggests(
            "log",
            r"is of cuda capability \d+\.\d+\.?[\s\S]{0,40}PyTorch no longer supports this GPU because it is too old|The minimum cuda capability (?:supported|that we support)",
        ),
        suggests(
            "log",
            r"which is of (?:compute|cuda) capability \(?CC\)? ?\d+\.\d+[\s\S]{0,400}not compatible|compute capabilit(?:y|ies) .{0,60}(?:not |un)supported by (?:this|the current|your) (?:PyTorch|torch)",
        ),
        suggests(
            "error",
            r"CUDA error: named symbol not found|is not a recognized processor for this target",
            unless=(seen("log", r"bitsandbytes"),),
        ),
    ),
    remedies=(
        Remedy("train on the CPU until the right build is installed", change={"device": "cpu"}, cost="much slower"),
        Remedy(
            "install a build that supports this card (RTX 50: cu128 or later; V100, GTX 10 and older: cu126)",
            command="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
        ),
        Remedy(
            "rebuild the extension for this card",
            command="TORCH_CUDA_ARCH_LIST=8.6 pip install --no-build-isolation --force-reinstall PACKAGE",
        ),
    ),
    sources=(
        "pytorch/pytorch#167244",
        "pytorch/pytorch#150733",
        "fundamentalvision/Deformable-DETR#88",
        "sconlyshootery/FeatDepth#68",
        "Comfy-Org/ComfyUI#16438",
    ),
    over=("native-lib-missing",),
    matches=(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\nThe current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.",
        "error in ms_deformable_im2col_cuda: no kernel image is available for execution on the device",
        "error in deformable_im2col: invalid device function",
        "RuntimeError: cuda runtime error (48) : no kernel image is available for execution on the device at /pytorch/aten/src/THC/generic/THCTensorMath.cu:14",
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        "    Found GPU0 Tesla K40c which is of cuda capability 3.5.\n    PyTorch no longer supports this GPU because it is too old.",
        "nvrtc: error: invalid value for --gpu-architecture (-arch)",
        "FATAL: kernel `fmha_cutlassF_f16_aligned` is for sm80-sm100, but was built for sm50",
        "RuntimeError: HIP error: invalid device function",
        "UserWarning: NVIDIA GeForce GT 710 which is of cuda capability 3.5.\n    The minimum cuda capability supported by this library is 3.7. It is not compatible.",
        "RuntimeError: CUDA error: named symbol not found",
        "RuntimeError: compute capability 3.5 is not supported by this PyTorch",
    ),
    near_misses=(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 10010).",
        "nvcc fatal   : Unsupported gpu architecture 'compute_86'",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
)
