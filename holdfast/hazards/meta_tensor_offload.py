"""Weights have no values because they were left on the meta device or offloaded.

What you see: "Cannot copy out of meta tensor; no data!", "You can't move a model that has some modules offloaded to cpu
or disk".
Why: `device_map="auto"` puts what does not fit the GPU on the CPU, the disk or nowhere yet (meta). The trainer then
moves the whole model, which needs all the values. Some checkpoints also lack weights that the model class has.
What we do: load the model onto one device, quantized if it does not fit.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

HAZARD = Hazard(
    slug="meta-tensor-offload",
    title="weights were left on the meta device or offloaded",
    kind="error",
    signs=(
        proves(
            "log",
            r"Cannot copy out of meta tensor; no data|cannot be called on meta tensors|is on the meta device, we need a `value`|Tensor on device meta is not on the expected device",
        ),
        proves(
            "error",
            r"can't (?:move|train) a model that has some modules offloaded|[Tt]rain(?:ing)? a model that has been loaded [^\n]{0,60}(?:CPU or disk|offloaded|any distributed mode)",
        ),
        proves(
            "error",
            r"(?i)unsupported device type:? meta|(?:on|to|from) (?:the )?meta device[^\n]{0,60}(?:not|no )|some parameters are on the meta device",
        ),
    ),
    remedies=(
        Remedy(
            "load the whole model onto one device",
            command="AutoModelForCausalLM.from_pretrained(name, device_map={'': 0})",
        ),
        Remedy(
            "load it in 4 bits, with an adapter",
            command="BitsAndBytesConfig(load_in_4bit=True)",
            cost="small differences from rounding",
        ),
        Remedy("spread the training itself over the GPUs", command="accelerate launch --use_fsdp train.py"),
    ),
    sources=("tloen/alpaca-lora#368", "Sreyan88/GAMA#15", "kbressem/medAlpaca#20", "instructlab/instructlab#610"),
    matches=(
        "NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module from meta to a different device.",
        "RuntimeError: You can't move a model that has some modules offloaded to cpu or disk.",
        "RuntimeError: Some parameters are on the meta device because they were offloaded to the disk.",
    ),
    near_misses=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",),
)
