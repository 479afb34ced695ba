"""The run asks for a GPU number that does not exist.

What you see: "CUDA error: invalid device ordinal", mostly from all ranks but the first.
Why: the launcher starts more processes than there are visible GPUs, CUDA_VISIBLE_DEVICES hides some of them, or the
program has a fixed device number from another machine.
What we do: say so. Start one process for each visible GPU.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen

HAZARD = Hazard(
    slug="more-ranks-than-gpus",
    title="the run asks for a GPU that does not exist",
    kind="error",
    signs=(
        proves(
            "error",
            r"invalid device ordinal|cudaErrorInvalidDevice\b|CUDA_ERROR_INVALID_DEVICE\b|hipErrorInvalidDevice\b",
        ),
        proves(
            "error",
            r"(?i)(?:num_?(?:gpus|processes|workers)|nproc_per_node|world[_ ]size|devices)[^\n]{0,60}(?:exceeds?|(?:is )?(?:greater|larger|more) than)[^\n]{0,60}(?:gpus?|devices)\b",
        ),
        proves(
            "error",
            r"You requested gpu: \[[\d, ]+\]\s+But your machine only has|[Ii]nvalid CUDA 'device=\S+' requested|insufficient CUDA devices for DDP|[Nn]o slot '\d+' specified on host",
            unless=(seen("log", r"is_available\(\): False|device_count\(\): 0|\+cpu\b"),),
        ),
    ),
    remedies=(
        Remedy("start one process for each visible GPU", command="torchrun --nproc-per-node gpu train.py", cost="none"),
        Remedy("see which GPUs are visible", command="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
    ),
    sources=(
        "HRNet/HRNet-Semantic-Segmentation#171",
        "yunqing-me/WatermarkDM#8",
        "wenwenyu/PICK-pytorch#14",
        "cfzd/Ultra-Fast-Lane-Detection#193",
    ),
    over=("nccl-error", "nccl-timeout", "torch-cpu-build"),
    matches=(
        '[rank3]:   File "train.py", line 14, in main\n[rank3]:     torch.cuda.set_device(local_rank)\n[rank3]: RuntimeError: CUDA error: invalid device ordinal',
        "ValueError: The number of processes (world_size=8) is greater than the number of GPUs (2)",
        "MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0, 1]",
    ),
    near_misses=(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: No CUDA GPUs are available",
    ),
)
