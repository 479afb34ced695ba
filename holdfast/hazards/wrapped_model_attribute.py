"""The program asks a wrapped model for something that only the model inside has.

What you see: "'DistributedDataParallel' object has no attribute 'config'", on several GPUs only; or the reverse, "object
has no attribute 'module'", on one.
Why: DataParallel, DDP, DeepSpeed and torch.compile wrap the model in an object of their own, which passes on `forward`
but not the model's other attributes.
What we do: name the wrapper. The code should unwrap the model first.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

_WRAPPERS = r"(?:Distributed)?DataParallel|DistributedDataParallel\w*|FullyShardedDataParallel|DeepSpeedEngine|OptimizedModule|FSDP\w*|_FabricModule"

HAZARD = Hazard(
    slug="wrapped-model-attribute",
    title="the program uses an attribute that the wrapped model hides",
    kind="error",
    signs=(
        proves("error", rf"'(?:{_WRAPPERS})' object has no attribute '(?!_sync|ds_)\w+'"),
        suggests("error", r"AttributeError: '\w+' object has no attribute 'module'"),
    ),
    remedies=(
        Remedy(
            "unwrap the model", command="inner = accelerator.unwrap_model(model)   # or getattr(model, 'module', model)"
        ),
        Remedy("show the run one GPU", command="CUDA_VISIBLE_DEVICES=0 python train.py", cost="one GPU only"),
    ),
    sources=(
        "ultralytics/yolov5#90",
        "huggingface/transformers#20583",
        "voidism/DiffCSE#5",
        "hpcaitech/ColossalAI#3234",
    ),
    over=("version-api-rename", "library-regression"),
    matches=(
        "AttributeError: 'DistributedDataParallel' object has no attribute 'config'",
        "AttributeError: 'ResNet' object has no attribute 'module'",
    ),
    near_misses=("AttributeError: 'ResNet' object has no attribute 'fc2'",),
)
