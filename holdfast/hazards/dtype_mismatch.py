"""Half-precision and single-precision tensors meet in one operation.

What you see: "expected scalar type Half but found Float", "mat1 and mat2 must have the same dtype, but got Float and
BFloat16", "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same".
Why: the model was loaded in float16 or bfloat16, and inputs, an adapter, a new head or a layer norm are in float32, in
a place that runs outside autocast: evaluation, generation, a custom loop or a quantized layer.
What we do: use one precision, or run the step under autocast.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests
from holdfast.hazards.apple_gpu import ON_MPS

_FLOAT = r"(?:c10::)?(?:Half|BFloat16|Float|float|double|Double|float16|float32|bfloat16|torch\.(?:float16|bfloat16|float32|float|half))"

HAZARD = Hazard(
    slug="dtype-mismatch",
    title="half-precision and single-precision tensors meet in one operation",
    kind="error",
    signs=(
        proves(
            "error",
            rf"(?:[Ff]ound dtype {_FLOAT} but expected {_FLOAT}$|expected (?:scalar )?(?:type|dtype) {_FLOAT} but (?:found|got)(?: dtype)? {_FLOAT}\b)",
            unless=(ON_MPS,),
        ),
        proves(
            "error",
            rf"(?:mat1 and mat2|m1 and m2|self and mat2|mat1 and|a and b|query, key,? and value)[^\n]{{0,40}}same dtype[^\n]{{0,30}}{_FLOAT}",
            unless=(ON_MPS,),
        ),
        # The two differ in precision only: with a CPU and a CUDA tensor the device is what differs.
        proves(
            "error",
            r"Input type \((?:(torch\.(?:cuda\.)?)(\w+?)(?:Tensor)?\) and (?:weight|bias) type \(\1(?!\2)\w+|(?:c10::)?(?:float|Half|BFloat16)\) and (?:weight|bias) type \((?:c10::)?(?:float|Half|BFloat16))\w*\) should be the same",
            unless=(ON_MPS,),
        ),
        proves(
            "error",
            rf"(?i)dtypes? (?:of|for)[^\n]{{0,60}}(?:must match|do(?:es)? not match|should match|to match)|source and destination dtypes match[^\n]*{_FLOAT}",
            unless=(ON_MPS,),
        ),
        suggests("error", r"\"(?!host_softmax|log_softmax|nll)\w+\" not implemented for 'Half'", unless=(ON_MPS,)),
    ),
    remedies=(
        Remedy(
            "run the step under autocast",
            command="with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(**batch).loss",
        ),
        Remedy(
            "load the model in the precision of the run",
            command="AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)",
        ),
        Remedy("train in float32", change={"precision": "fp32"}, cost="twice the memory"),
    ),
    sources=("tloen/alpaca-lora#203", "unslothai/unsloth#212", "OpenBMB/MiniCPM-V#234", "hiyouga/LlamaFactory#724"),
    matches=(
        "RuntimeError: expected scalar type Half but found Float",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
        "RuntimeError: Index put requires the source and destination dtypes match, got Half for the destination and Float for the source.",
        "RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'",
    ),
    near_misses=(
        "RuntimeError: expected scalar type Long but found Float",
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
        "RuntimeError: Input type (MPSFloatType) and weight type (MPSHalfType) should be the same",
        "ValueError: Attempting to unscale FP16 gradients.",
    ),
)
