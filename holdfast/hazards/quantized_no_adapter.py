"""A quantized model was given to the trainer without an adapter.

What you see: "You cannot perform fine-tuning on purely quantized models. Please attach trainable adapters", or "that
quantization method do not support training".
Why: 4-bit and 8-bit weights cannot be trained themselves; only LoRA or another adapter on top of them can. The adapter
was never added, was merged again, or belongs to a library that the trainer does not recognize.
What we do: say so. A LoRA adapter has to be added before the trainer is made.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

HAZARD = Hazard(
    slug="quantized-no-adapter",
    title="a quantized model cannot be trained without an adapter",
    kind="error",
    signs=(
        proves(
            "log",
            r"cannot (?:perform|do) fine-?tuning on purely quantized models|quantization method do(?:es)? not support training|train a model with quantized weights|Only LayerNorm[^\n]*quantized",
        ),
        proves(
            "error",
            r"(?i)(?:4-?bit|8-?bit|int8|quantized)[^\n]{0,60}(?:weights?|models?)[^\n]{0,40}(?:can ?not|can't|does not support|do not support|doesn't support)[^\n]{0,30}(?:train|fine-?tun|gradient)",
        ),
    ),
    remedies=(
        Remedy(
            "add a LoRA adapter before the trainer is made",
            command="model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(target_modules='all-linear'))",
        ),
        Remedy(
            "load the model without quantization",
            command="AutoModelForCausalLM.from_pretrained(name, dtype='bfloat16')",
            cost="two to four times the memory",
        ),
    ),
    sources=(
        "unslothai/unsloth#241",
        "AGI-Edgerunners/LLM-Adapters#57",
        "huggingface/transformers#27702",
        "BAAI-DCAI/Bunny#112",
    ),
    matches=(
        "ValueError: You cannot perform fine-tuning on purely quantized models. Please attach trainable adapters on top of the quantized model to correctly perform fine-tuning.",
        "RuntimeError: int8 weights cannot be trained directly",
    ),
    near_misses=(
        "ImportError: Using `bitsandbytes` 8-bit quantization requires the latest version of bitsandbytes: `pip install -U bitsandbytes`",
        "ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models.",
    ),
)
