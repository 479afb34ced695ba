"""The gradient scaler was used with weights that are in half precision.

What you see: "Attempting to unscale FP16 gradients", at the first optimizer step; or
"_amp_foreach_non_finite_check_and_unscale_cuda not implemented for 'BFloat16'".
Why: mixed precision keeps the trained weights in float32 and scales the loss so that small gradients survive. A model
or adapter that was loaded in float16 or bfloat16 and trained with fp16=True has no float32 weights.
What we do: keep the trained weights in float32, or use bfloat16, which needs no scaler.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="fp16-unscale",
    title="the gradient scaler does not work with half-precision weights",
    kind="error",
    signs=(
        proves("log", r"Attempting to unscale FP16 [Gg]radients"),
        proves("log", r"_amp_(?:foreach_)?non_finite_check_and_unscale\w*\"? not implemented for"),
        suggests(
            "log",
            r"No inf checks were recorded (?:for this optimizer|prior to update)|unscale_\(\) has already been called on this optimizer|unscale_\(\) is being called after step",
        ),
        suggests("frame", r"^_unscale_grads_|^unscale_ \(|^unscale_gradients", unless=(seen("error", r"Error"),)),
    ),
    remedies=(
        Remedy(
            "compute in bfloat16, which needs no scaler",
            change={"precision": "bf16"},
            cost="needs an Ampere or newer card, or macOS 14",
        ),
        Remedy("compute in float32", change={"precision": "fp32"}, cost="slower, more memory"),
        Remedy(
            "keep the trained weights in float32 and let autocast do the rest",
            command="model = AutoModel.from_pretrained(name, dtype='float32')   # LoRA: for p in model.parameters(): if p.requires_grad: p.data = p.data.float()",
            cost="more memory for full fine-tuning, almost none for LoRA",
        ),
    ),
    sources=(
        "mark1879/Baichuan-13B-Finetuning#21",
        "huggingface/diffusers#6086",
        "huggingface/transformers#30559",
        "huggingface/trl#4901",
        "pytorch/pytorch#127176",
    ),
    matches=(
        "ValueError: Attempting to unscale FP16 gradients.",
        "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
        "AssertionError: No inf checks were recorded for this optimizer.",
        '  File "/lib/python3.10/site-packages/accelerate/accelerator.py", line 2040, in clip_grad_norm_\n    self.unscale_gradients()\n'
        '  File "/lib/python3.10/site-packages/torch/amp/grad_scaler.py", line 260, in _unscale_grads_',
    ),
    near_misses=(
        "RuntimeError: expected scalar type Half but found Float",
        "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    ),
)
