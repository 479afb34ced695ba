"""The installed torch was built without CUDA, but the run asks for a GPU.

What you see: "Torch not compiled with CUDA enabled", "torch.cuda.is_available() is False", or a banner such as "torch
2.4.0+cpu" and a run that is a hundred times too slow.
Why: `pip install torch` installs the CPU build on Windows and macOS, and another package's requirement can replace a
CUDA build with a CPU build. A Mac or a machine without an NVIDIA card has no CUDA at all.
What we do: train on the available device, and say how to get the CUDA build if there is a card.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, proves, seen, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.torch is None or facts.torch.cuda or facts.torch.rocm:
        return None
    cards = [gpu.name for gpu in facts.gpus if gpu.kind == "cuda"]
    if cards:
        return Invited(f"this machine has {cards[0]}, but torch {facts.torch.version} was built without CUDA")
    if plan.device == "cuda":
        return Invited(f"the plan asks for CUDA; torch {facts.torch.version} was built without it", "blocker")
    return None


HAZARD = Hazard(
    slug="torch-cpu-build",
    title="the installed torch was built without CUDA",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"Torch not compiled with CUDA enabled|PyTorch (?:was|is) (?:not )?compiled without CUDA|[Tt]orch (?:was|is) not compiled with (?:CUDA|cuda|GPU)",
        ),
        # A CUDA build says the same where the driver or the card is missing.
        suggests(
            "log", r"Attempting to deserialize object on a CUDA\s+device but torch\.cuda\.is_available\(\) is False"
        ),
        proves(
            "log",
            r"module 'torch\._C' has no attribute '_(?:cuda|scatter|broadcast|gather)\w*'|has no attribute '_cuda_(?:setDevice|getDeviceCount|getDevice|getCurrentRawStream)'",
        ),
        proves("log", r"Could not run '(?!aten::_?pin_memory)\S+' with arguments from the 'CUDA' backend"),
        suggests(
            "error",
            r"torch\.cuda\.is_available\(\)|CUDA (?:is )?(?:not available|unavailable)|cuda (?:is )?not available|[Nn]o (?:CUDA|GPU|NVIDIA GPU)s? (?:available|found|detected)",
            unless=(seen("error", r"[Qq]uantiz|bitsandbytes"),),
        ),
        suggests(
            "log", r"CUDA unavailable, invalid device \S+ requested|Invalid CUDA '(?:--)?device[= ]\S+' requested"
        ),
        suggests(
            "error",
            r"Mixed precision training with AMP or APEX.* can only be used on CUDA|mixed precision requires a GPU|Your setup doesn't support bf16/gpu|You requested gpu: |No supported gpu backend found|GPUAccelerator.{0,60}not available|Cannot access accelerator device when none is available|Unsloth cannot find any torch accelerator|a GPU is required|GPU is required",
        ),
        suggests(
            "log",
            r"(?i)torch[\w .:=/-]{0,20}\d+\.\d+(?:\.\d+)?\w*\+cpu\b",
            unless=(seen("log", r"device\(s\)? ?[:=] ?mps|mps:0"),),
        ),
        suggests(
            "log",
            r"User provided device_type of 'cuda', but CUDA is not available|CUDA is not available,? (?:using|falling back to|defaulting to|switching to) (?:the )?CPU|CUDA available: False|on a CPU \(torch\.cuda\.is_available is False",
        ),
    ),
    remedies=(
        Remedy("train on the available device", change={"device": "auto"}, cost="slower than on the card"),
        Remedy(
            "install the CUDA build, if the machine has an NVIDIA card",
            command="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
        ),
        Remedy("load a checkpoint that was saved on a GPU", command="torch.load(path, map_location='cpu')"),
    ),
    sources=(
        "karpathy/nanoGPT#281",
        "facebookresearch/detectron2#460",
        "Comfy-Org/ComfyUI#16438",
        "pytorch/pytorch#64720",
    ),
    matches=(
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')",
        "YOLOv5 v6.1-306-gfbe67e4 Python-3.8.13 torch-1.11.0+cpu CPU",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
        "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend. This could be because the operator doesn't exist for this backend",
        "ValueError: Invalid CUDA 'device=0' requested. Use 'device=cpu' or pass valid CUDA device(s) if available\ntorch.cuda.is_available(): False\ntorch.cuda.device_count(): 0",
        "ValueError: FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision evaluation (`--fp16_full_eval`) can only be used on CUDA devices.",
        "User provided device_type of 'cuda', but CUDA is not available. Disabling",
    ),
    near_misses=(
        "RuntimeError: Attempting to deserialize object on CUDA device 2 but torch.cuda.device_count() is 1.",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 10010).\n  return torch._C._cuda_getDeviceCount() > 0\nYOLOv5 v4.0 torch 1.7.1 CPU",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\nRuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        Case("UserWarning: torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.", "0"),
    ),
)
