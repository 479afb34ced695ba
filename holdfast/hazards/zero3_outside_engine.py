"""Partitioned weights (ZeRO-3, FSDP) were used outside their engine.

What you see: "'weight' must be 2-D", a size mismatch with `torch.Size([0])`, "'Parameter' object has no attribute
'ds_id'".
Why: ZeRO-3 and FSDP keep each weight in pieces and gather it only while its own wrapped model runs. A second model, an
initialization or a loss that touches a weight directly sees an empty piece.
What we do: gather the weight first, wrap the second model as well, or use ZeRO-2, which does not split weights.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="zero3-outside-engine",
    title="partitioned weights were used outside their engine",
    kind="error",
    signs=(
        suggests("error", r"'weight' must be 2-D|weight should have at least three dimensions"),
        proves(
            "error",
            r"object has no attribute 'ds_(?:id|tensor|shape|status|numel|summary)'|ZeroParamStatus\.(?:NOT_AVAILABLE|INFLIGHT)|still have inflight params|InflightParamRegistry",
        ),
        suggests(
            "error",
            r"torch\.Size\(\[0\]\)|size of tensor [ab] \(0\) must match",
            also=(seen("log", r"(?i)deepspeed|zero[-_ ]?3|fsdp|fully_?sharded"),),
        ),
    ),
    remedies=(
        Remedy(
            "gather the weights for the time of the access",
            command="with deepspeed.zero.GatheredParameters(list(module.parameters())): ...",
        ),
        Remedy(
            "prepare the second model as well",
            command="teacher = accelerator.prepare_model(teacher, evaluation_mode=True)",
        ),
        Remedy("use ZeRO-2", command='deepspeed config: {"zero_optimization": {"stage": 2}}', cost="more memory"),
    ),
    sources=(
        "huggingface/trl#669",
        "huggingface/transformers#32021",
        "deepspeedai/DeepSpeed#3570",
        "huggingface/transformers#43783",
    ),
    over=("checkpoint-mismatch",),
    matches=(
        "  File \"/venv/lib/python3.11/site-packages/torch/nn/functional.py\", line 2551, in embedding\n    return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)\nRuntimeError: 'weight' must be 2-D",
        "AttributeError: 'Parameter' object has no attribute 'ds_id'",
        "deepspeed zero_stage: 3\nRuntimeError: size mismatch for embed_tokens.weight: copying a param with shape torch.Size([32001, 4096]) from checkpoint, the shape in current model is torch.Size([0]).",
    ),
    near_misses=(
        "RuntimeError: size mismatch for fc.weight: copying a param with shape torch.Size([10, 4]) from checkpoint, the shape in current model is torch.Size([2, 4]).",
    ),
)
