"""An operation has no implementation on the Apple GPU.

What you see: "NotImplementedError: The operator 'aten::...' is not currently implemented for the MPS device", or "Could
not run 'aten::...' with arguments from the 'MPS' backend".
Why: the Apple GPU backend is newer than the others, and each torch release fills more gaps.
What we do: run just that operation on the CPU (`PYTORCH_ENABLE_MPS_FALLBACK=1`, which must be set before torch is
imported), then the whole run.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS

_FALLS_BACK = (seen("log", r"will fall back to run on the CPU"),)

HAZARD = Hazard(
    slug="mps-unsupported-op",
    title="an operation is not implemented on the Apple GPU",
    kind="error",
    signs=(
        proves("error", r"operator '[\w:.]+' is not currently (?:implemented|supported) (?:for|on) the MPS"),
        proves("error", r"Could not run '[\w:.]+' with arguments from the '(?:Sparse\w*|Quantized)?MPS' backend"),
        proves("error", r"PYTORCH_ENABLE_MPS_FALLBACK"),
        proves("error", r"(?i:not (?:yet )?(?:implemented|supported)(?: yet)? (?:on|for|with|at|in) (?:the )?mps\b)"),
        proves("error", r"(?i:\bmps(?: device| backend)? (?:does(?:n't| not)|is not) (?:yet )?(?:support|implement))"),
        proves(
            "error",
            r"device type MPS is not supported for torch\.Generator|No backend type associated with device type mps",
        ),
        suggests("error", r"Adaptive pool MPS: input sizes must be divisible|Output channels > 65536 not supported"),
        suggests("error", r"tensor backend other than CPU/CUDA/MKLDNN", also=(ON_MPS,)),
        # Pinned memory exists only for CUDA; builds without CUDA kernels, such as every Mac's, word it this way.
        suggests("error", r"Could not run 'aten::_?pin_memory' with arguments from the 'CUDA' backend"),
        suggests(
            "error",
            r"not linked with support for mps devices|built with MPS enabled|MPS backend is supported on MacOS|Expected one of cpu,[^\n]{0,160}: mps\b",
        ),
        suggests(
            "log",
            r"operator '[\w:.]+' is not currently (?:implemented|supported) (?:for|on) the MPS",
            unless=_FALLS_BACK,
        ),
        suggests("error", r"NotImplementedError", also=(ON_MPS, seen("log", r"aten::|torch/_ops|_refs"))),
    ),
    remedies=(
        Remedy(
            "run missing operations on the CPU",
            change={"PYTORCH_ENABLE_MPS_FALLBACK": "1"},
            cost="each such operation copies its data",
        ),
        Remedy("install a torch release that has the operation", command="pip install --upgrade torch"),
        Remedy("train on the CPU", change={"device": "cpu"}, cost="slower"),
    ),
    sources=("pytorch/pytorch#77764", "pytorch/pytorch#77754", "ultralytics/ultralytics#2854", "karpathy/nanoGPT#120"),
    over=("torch-cpu-build",),
    matches=(
        "NotImplementedError: The operator 'aten::lerp.Scalar_out' is not currently implemented for the MPS device. If you want this op to be added in priority during the prototype phase of this feature, please comment.",
        "NotImplementedError: The operator 'aten::linalg_qr.out' is not currently supported on the MPS backend.",
        "NotImplementedError: Could not run 'aten::cumsum.out' with arguments from the 'MPS' backend. This could be because the operator doesn't exist for this backend.",
        "NotImplementedError: Could not run 'aten::_sparse_coo_tensor_with_dims_and_tensors' with arguments from the 'SparseMPS' backend.",
        "RuntimeError: Conv3D is not supported on MPS",
        "RuntimeError: Adaptive pool MPS: input sizes must be divisible by output sizes.",
        "NotImplementedError: Could not run 'aten::_pin_memory' with arguments from the 'CUDA' backend.",
        "RuntimeError: No backend type associated with device type mps",
        "NotImplementedError: set PYTORCH_ENABLE_MPS_FALLBACK=1 to run aten::foo on the CPU",
        "RuntimeError: The MPS backend does not support this operator",
        "device: mps\nRuntimeError: Could not run on tensor backend other than CPU/CUDA/MKLDNN",
        "RuntimeError: PyTorch is not linked with support for mps devices",
    ),
    near_misses=(
        "UserWarning: The operator 'aten::nonzero' is not currently supported on the MPS backend and will fall back to run on the CPU. This may have performance implications.",
        "UserWarning: 'pin_memory' argument is set as true but not supported on MPS now, then device pinned memory won't be used.",
        "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
        "TypeError: BFloat16 is not supported on MPS",
    ),
)
