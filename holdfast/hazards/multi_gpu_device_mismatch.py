"""Tensors on different GPUs meet in one operation.

What you see: "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!"
Why: with several visible GPUs, `device_map="auto"` spreads the layers over all of them, while the loss, the labels, an
added head or the trainer's own DataParallel expect one.
What we do: show the process one GPU, or start one process for each.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

_TWO_CARDS = r"cuda:(\d+)[^\n]{0,40}cuda:(?!\1)\d+"

HAZARD = Hazard(
    slug="multi-gpu-device-mismatch",
    title="tensors on different GPUs meet in one operation",
    kind="error",
    signs=(
        proves("error", rf"at least two devices, {_TWO_CARDS}|on the same device[^\n]{{0,80}}{_TWO_CARDS}"),
        proves(
            "error",
            r"module must have its parameters and buffers on device cuda:\d+ \(device_ids\[0\]\) but found one of them on device|loaded in 8-bit precision on a different device|arguments are located on different GPUs|[Tt]ensors? (?:are|is) on (?:a )?different (?:CUDA |GPU )?devices?",
        ),
    ),
    remedies=(
        Remedy("show the process one GPU", command="CUDA_VISIBLE_DEVICES=0 python train.py", cost="one GPU only"),
        Remedy(
            "start one process for each GPU, each with a whole model", command="torchrun --nproc-per-node gpu train.py"
        ),
        Remedy(
            "put the whole model on the process's own GPU", command="from_pretrained(name, device_map={'': local_rank})"
        ),
    ),
    sources=("QwenLM/Qwen3#286", "hiyouga/LlamaFactory#258", "tloen/alpaca-lora#182"),
    matches=(
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cuda:0!",
        "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on device: cuda:1",
    ),
    near_misses=(
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ),
)
