"""A tensor that needs a gradient is changed in place before anything was computed from it.

What you see: "a leaf Variable that requires grad is being used in an in-place operation", or "a view of a leaf
Variable ..."; often after gradient checkpointing was switched on for an adapter.
Why: `enable_input_require_grads` makes the embeddings require a gradient, and multimodal models then write image
features into them. The same happens to weights that are changed outside `torch.no_grad()`.
What we do: run without gradient checkpointing if memory allows it; the code should write into a copy.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

HAZARD = Hazard(
    slug="leaf-inplace",
    title="a tensor that needs a gradient is changed in place",
    kind="error",
    signs=(
        proves("error", r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place operation"),
    ),
    remedies=(
        Remedy("switch gradient checkpointing off", change={"gradient_checkpointing": False}, cost="more memory"),
        Remedy(
            "write into a copy",
            command="inputs_embeds = inputs_embeds.clone(); inputs_embeds[mask] = features   # or masked_scatter",
        ),
        Remedy("change weights only without gradients", command="with torch.no_grad(): layer.weight[:, i] += delta"),
    ),
    sources=(
        "huggingface/optimum-habana#1970",
        "NVlabs/VILA#199",
        "modelscope/ms-swift#4613",
        "2U1/Qwen-VL-Series-Finetune#178",
    ),
    over=("gradient-checkpointing-conflict",),
    matches=("RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place operation.",),
    near_misses=(
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation",
    ),
)
