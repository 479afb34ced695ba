"""The Apple GPU does not support a number format, or one operation mixes two formats.

What you see: "Cannot convert a MPS Tensor to float64 dtype", "Trying to convert BFloat16 to the MPS backend but it does
not have support for that dtype", "MPS does not support cumsum op with int64 input", or an abort with "op requires the
same element type".
Why: Metal has no double precision. bfloat16 needs macOS 14 and torch 2.6; float16 training with a scaler needs torch
2.8. Unlike the CPU and CUDA backends, mps does not always convert integer and mixed operands.
What we do: train in float32 on the same device first. The fallback variable does not help, because the check comes
before any operator.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, proves, suggests
from holdfast.hazards.apple_gpu import ON_MPS, uses_mps

_FORMAT = r"(?:double|float64|float16|half|bfloat16|bf16|fp16|complex\w*|int64|int32|int|long|integer|bool|uint\w*|non-float|float8\w*)"
_MPS_TYPE = r"MPS(?:B?Float(?:16)?|Half|Double|Byte|Char|Short|Int|Long|Bool|Complex\w*|BFloat16)Type"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if not uses_mps(facts, plan):
        return None
    if plan.precision == "bf16" and facts.has_below("torch", "2.6"):
        return Invited(f"bf16 training on the Apple GPU needs torch 2.6; this is {facts.distributions['torch']}")
    return None


HAZARD = Hazard(
    slug="mps-dtype",
    title="the Apple GPU does not support this number format",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"Cannot convert a MPS Tensor to \w+ dtype|MPS framework doesn't support (?:float64|\w+)"),
        proves("log", r"Trying to convert \w+ to the MPS backend but"),
        proves(
            "log",
            rf"(?i:MPS(?: device| backend)? (?:does(?:n't| not)|cannot) (?:yet )?(?:support|handle) [^\n]{{0,60}}\b{_FORMAT}\b)",
        ),
        proves("log", rf"(?i:\b{_FORMAT}\b (?:is|are) not (?:yet )?supported (?:on|by|for) (?:the )?mps)"),
        proves(
            "log",
            r"MPS BFloat16 is only supported on MacOS|requires a GPU \(not 'mps'\)|with MPS device requires|unsupported autocast device_type 'mps'",
        ),
        proves(
            "log", r"'mps\.\w+' op requires the same element type|mps\w*[^\n]{0,160} requires the same element type"
        ),
        proves(
            "log",
            r"(?:NDArray|MPS\w*)[^\n]{0,160}(?:cannot have different|must have the same|mismatched) (?:datatype|data type)s?",
        ),
        # Two element types in one graph operation: 'tensor<64x1xf32>' and 'tensor<64x8xsi64>'.
        proves(
            "log",
            r"input types 'tensor<[^>']*?(?P<first>b?f\d+|[su]?i\d+)>' and 'tensor<(?![^>']*?(?P=first)>)[^>']*>'",
        ),
        proves("error", rf"[Ii]nput type \({_MPS_TYPE}\) and (?:weight|bias) type \({_MPS_TYPE}\)"),
        suggests(
            "error",
            r"(?i)(?:fp16|bf16|mixed precision)[^\n]{0,160}(?:can only be used on|requires|supported)|setup doesn't support bf16",
            also=(ON_MPS,),
        ),
        suggests(
            "error",
            r"not implemented for '(?:Half|BFloat16|Double|Long)'|same dtype|Unsupported (?:dtype|type)",
            also=(ON_MPS,),
        ),
    ),
    remedies=(
        Remedy("train in float32", change={"precision": "fp32"}, cost="more memory; no slower on M1 and M2"),
        Remedy("train on the CPU, which supports every format", change={"device": "cpu"}, cost="slower"),
        Remedy(
            "convert before moving to the device",
            command="x = x.float().to('mps')",
            cost="double precision becomes single precision",
        ),
        Remedy("install a newer torch", command="pip install --upgrade 'torch>=2.14'"),
    ),
    sources=(
        "pytorch/pytorch#77781",
        "pytorch/pytorch#143932",
        "pytorch/pytorch#141786",
        "pytorch/pytorch#104191",
        "thu-ml/tianshou#1237",
        "pytorch/pytorch#193545",
        "huggingface/accelerate#3373",
    ),
    over=("mps-crash", "mps-unsupported-op"),
    matches=(
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead.",
        "TypeError: Trying to convert Double to the MPS backend but there is no mapping for it.",
        "libc++abi: terminating due to uncaught exception of type c10::TypeError: Trying to convert ComplexDouble to the MPS backend but it does not have support for that dtype.",
        "TypeError: Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that dtype.",
        "TypeError: BFloat16 is not supported on MPS",
        "RuntimeError: MPS BFloat16 is only supported on MacOS 14 or newer",
        "RuntimeError: MPS does not support cumsum op with int64 input",
        "RuntimeError: MPS device does not support mm for non-float inputs",
        Case(
            "(mpsFileLoc): /Sources/mpsgraph/MPSGraphUtilities.mm:233:0: error: 'mps.multiply' op requires the same element type for all operands and results",
            "SIGABRT",
        ),
        Case(
            "loc(\"mps_add\"(\"(mpsFileLoc): MPSGraphUtilities.mm\":219:0)): error: input types 'tensor<1x4096x320xf16>' and 'tensor<1xf32>' are not broadcast compatible\nLLVM ERROR: Failed to infer result type(s).",
            "SIGABRT",
        ),
        "MPSNDArrayMatrixMultiplication.mm:3524: failed assertion `Destination NDArray and Accumulator NDArray cannot have different datatype in MPSNDArrayMatrixMultiplication'",
        "RuntimeError: Input type (MPSFloatType) and weight type (MPSHalfType) should be the same",
        "ValueError: fp16 mixed precision requires a GPU (not 'mps').",
        "device=mps\nRuntimeError: \"conv2d\" not implemented for 'Half'",
    ),
    near_misses=(
        "RuntimeError: Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same",
        "UserWarning: MPS: no support for int64 repeats mask, casting it to int32",
        "NotImplementedError: The operator 'aten::lerp.Scalar_out' is not currently implemented for the MPS device.",
        "RuntimeError: expected scalar type Float but found Double",
        "RuntimeError: Input type (torch.cuda.DoubleTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ),
)
