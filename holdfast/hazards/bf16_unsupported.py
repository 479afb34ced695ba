"""bfloat16 was requested, and this GPU or CPU does not have it.

What you see: "Your setup doesn't support bf16/gpu", "Bfloat16 is only supported on GPUs with compute capability of at
least 8.0. Your Tesla T4 GPU has compute capability 7.5".
Why: NVIDIA cards before Ampere (T4, V100, P100, RTX 20) compute in float16 but not in bfloat16.
What we do: train in float32 where memory allows it; float16 with loss scaling is the alternative on these cards.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS

HAZARD = Hazard(
    slug="bf16-unsupported",
    title="this GPU or CPU does not support bfloat16",
    kind="error",
    signs=(
        proves(
            "error",
            r"(?i)b(?:f|float)16 is (?:only|not) supported on[^\n]{0,60}(?:compute capability|GPU|card|device|architecture)",
            unless=(ON_MPS,),
        ),
        proves(
            "error",
            r"(?i)(?:device|GPU|card|CUDA device|hardware|machine)[^\n]{0,60}(?:does not|doesn't|do not) support b(?:f|float)16",
            unless=(ON_MPS,),
        ),
        suggests(
            "error",
            r"Your setup doesn't support bf16|bf16[^\n]{0,40}(?:requires?|need)[^\n]{0,40}(?:Ampere|compute capability)",
            unless=(ON_MPS, seen("log", r"\+cpu\b|not compiled with CUDA")),
        ),
        suggests("error", r"\"(?!_amp)\w+\" not implemented for 'BFloat16'", unless=(ON_MPS,)),
    ),
    remedies=(
        Remedy("train in float32", change={"precision": "fp32"}, cost="twice the memory, slower"),
        Remedy(
            "train in float16 with loss scaling",
            command="TrainingArguments(fp16=True, bf16=False)",
            cost="overflows are possible",
        ),
    ),
    sources=(
        "vllm-project/vllm#1157",
        "vllm-project/vllm#946",
        "OptimalScale/LMFlow#88",
        "substratusai/vllm-docker#37",
    ),
    over=("torch-cpu-build",),
    matches=(
        "RuntimeError: \"triu_tril_cuda_template\" not implemented for 'BFloat16'",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.",
        "RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16.",
        "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the model on CPU.",
    ),
    near_misses=(
        "TypeError: BFloat16 is not supported on MPS",
        "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
    ),
)
