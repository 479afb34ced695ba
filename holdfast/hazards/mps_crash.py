"""Apple's Metal libraries aborted the process.

What you see: "failed assertion" from MPSNDArray, MPSGraph or a Metal command buffer, "LLVM ERROR: Failed to infer
result type(s)", "commit an already committed command buffer", then an abort without a Python traceback. Sometimes
training continues after "command buffer exited with error status" with values that cannot be trusted.
Why: a kernel of the Apple GPU backend was called with a layout, shape or state that Metal checks and torch did not.
Most of these are bugs in one torch release that only certain tensor shapes trigger.
What we do: run the step on the CPU. A newer torch often has the fix.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import HUNG, Case, Hazard, Invited, ended_by, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS, uses_mps

_FORKED = seen("log", r"XPC_ERROR_CONNECTION_INVALID|fork_child|in progress in another thread when fork")
_MEMORY = seen("log", r"CallbackErrorOutOfMemory|Insufficient Memory|MPS backend out of memory")
_TYPES = seen(
    "log", r"same element type|different datatype|tensor<[^>]*(?:f16|bf16|f32)>'? and '?tensor<[^>]*(?:si|ui|i)\d+>"
)
_METAL_NAME = r"(?:MPS|MTL|Metal|AGX|IOGPU|GPU\w*Ops|mpsgraph)"
_CRASH_SIGNALS = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGTRAP", "SIGILL")
_METAL_FRAME = r"MTLReportFailure|-\[(?:_?MTL|MPS|AGX|IOGPU)\w+ |\((?:Metal|MPSCore|MPSNDArray|MPSMatrix|MetalPerformanceShaders\w*|AGXMetal\w*|IOGPU)\)"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    crashed = next(
        (trial for trial in facts.trials if trial.device.startswith("mps") and trial.outcome == "crash"), None
    )
    if crashed:
        return Invited(f"one training step on the Apple GPU crashed here: {crashed.detail}", "blocker")
    if not uses_mps(facts, plan):
        return None
    if facts.has_at_least("transformers", "5.14.1") and facts.has_at_least("torch", "2.13"):
        return Invited(
            "loading a bf16 checkpoint as float32 with device_map='auto' crashes with transformers 5.14 and later on torch 2.13",
            "note",
            (Remedy("load weights one at a time", change={"HF_DEACTIVATE_ASYNC_LOAD": "1"}, cost="slower start"),),
        )
    return None


HAZARD = Hazard(
    slug="mps-crash",
    title="a Metal library of the Apple GPU aborted the process",
    kind="crash",
    invited_by=invited_by,
    signs=(
        proves("log", rf"{_METAL_NAME}[^\n]{{0,160}}failed assertion", unless=(_FORKED,)),
        proves(
            "log",
            r"failed assertion[^\n]{0,160}(?:MPS|NDArray|MTL|[Cc]ommand ?[Bb]uffer|command encoder|Metal)",
            unless=(_FORKED,),
        ),
        proves(
            "log",
            r"(?:commit an already committed|encoding to this) command buffer|[Cc]ommand encoder released without endEncoding",
        ),
        proves(
            "log", r"command buffer exited with error status|Command buffer execution failed", unless=(_MEMORY, _FORKED)
        ),
        proves("log", r"kIOGPUCommandBufferCallbackError(?!OutOfMemory)\w+", unless=(HUNG,)),
        proves(
            "log",
            r"Assertion failed: [^\n]{0,160}file (?:(?:GPU|MPS|MLIR|NDArray)\w*\.(?:mm|cpp|h)|\w*_mps\w*\.mm?), line",
        ),
        proves("log", r"LLVM ERROR: Failed to infer result type", also=(seen("log", r"(?i)mps"),), unless=(_TYPES,)),
        proves(
            "log",
            r"\(mpsFileLoc\)[^\n]{0,160}error:|loc\(\"mps_\w+\"[^\n]{0,160}error:|'mps\.\w+' op |see current operation: %\w+ = \"mps\.",
            unless=(_TYPES,),
        ),
        proves("error", r"INTERNAL ASSERT FAILED at [^\n]{0,160}[/\\]mps[/\\]|\[srcBuf length\] > 0"),
        suggests(
            "log",
            r"Failed to create (?:the )?(?:Metal|MTL|metal)\w*|Error creating (?:MTL|Metal)\w+|MTLLibrary(?:Error|Domain)",
            unless=(_FORKED,),
        ),
        suggests("frame", _METAL_FRAME, also=(ended_by(*_CRASH_SIGNALS),), unless=(_FORKED,)),
        suggests(
            "log",
            r"at::(?:native::)?mps::|torch::mps::",
            also=(ended_by(*_CRASH_SIGNALS),),
            unless=(_FORKED,),
        ),
        suggests(
            "error",
            r"(?i)segmentation fault|abort trap|zsh: (?:abort|trace trap|bus error)|SIG(?:SEGV|ABRT|TRAP)",
            also=(ON_MPS,),
            unless=(_FORKED, seen("log", r"(?i)libomp|OMP:|__kmp|mutex|fork\b|MPS backend out of memory")),
        ),
    ),
    remedies=(
        Remedy("train on the CPU", change={"device": "cpu"}, cost="slower"),
        Remedy("install a torch release that has the fix", command="pip install --upgrade 'torch>=2.14'"),
        Remedy("make tensors contiguous before the call that aborts", command="x = x.contiguous()", cost="a copy"),
    ),
    sources=(
        "pytorch/pytorch#167154",
        "pytorch/pytorch#78492",
        "pytorch/pytorch#108996",
        "pytorch/pytorch#138200",
        "pytorch/pytorch#123364",
        "pytorch/pytorch#193571",
        "huggingface/transformers#48029",
    ),
    matches=(
        "/AppleInternal/Library/BuildRoots/4~B5E/Sources/MetalPerformanceShaders/MPSCore/Types/MPSNDArray.mm:891: failed assertion `[MPSNDArray, initWithBufferImpl:offset:descriptor:] Error: buffer is not large enough. Must be 76 bytes'",
        "MPSNDArray.mm:124: failed assertion `[MPSNDArrayDescriptor sliceDimension:withSubrange:] error: subRange.start (6) is not less than length of dimension[0] (6)'",
        "[IOGPUMetalCommandBuffer validate]:213: failed assertion `commit an already committed command buffer'",
        "-[_MTLCommandBuffer addCompletedHandler:]:1011: failed assertion `Completed handler provided after commit call'",
        Case(
            "Error: command buffer exited with error status.\n\tThe Metal Performance Shaders operations encoded on it may not have completed.\n\tInternal Error (0000000e:Internal Error)",
            "1",
        ),
        "Assertion failed: (0 <= mpsAxis && mpsAxis < 4), function getKernelAxes, file GPUReductionOps.mm, line 31.",
        "loc(\"mps_subtract\"(\"(mpsFileLoc): /Sources/mpsgraph/MPSGraphUtilities.mm\":228:0)): error: input types 'tensor<64x1xf32>' and 'tensor<64x8x2xf32>' are not broadcast compatible\nLLVM ERROR: Failed to infer result type(s).",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
        Case(
            "Thread 4 Crashed::  Dispatch queue: metal gpu stream\n0   libsystem_kernel.dylib  0x197c36388 __pthread_kill + 8\n1   Metal   0x1a3213cb0 MTLReportFailure.cold.1 + 48\n",
            "SIGABRT",
        ),
        "Using device: mps\nEpoch 1:   3%|#| 12/400\nzsh: segmentation fault  python train.py",
        "/Sources/MetalPerformanceShadersGraph/Core/Files/Operations/MPSGraphConvolutionOps.mm:346: failed assertion `sourceTensor rank must be 4'",
        'RuntimeError: [srcBuf length] > 0 INTERNAL ASSERT FAILED at "aten/src/ATen/native/mps/OperationUtils.mm":530, please report a bug to PyTorch.',
        "RuntimeError: Failed to create Metal compute pipeline",
        Case("0   libtorch_cpu.dylib   0x00000001100 at::native::mps::runMPSGraph + 120", "SIGABRT"),
    ),
    near_misses=(
        "MPSKernelDAG.mm:805: failed assertion `Error getting visible function: (null) Compiler encountered XPC_ERROR_CONNECTION_INVALID (is the OS shutting down?)'",
        "RuntimeError: MPS backend out of memory (MPS allocated: 33.48 GB, other allocations: 2.45 GB, max allowed: 36.27 GB).",
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.\nUsing device: mps\nAbort trap: 6",
    ),
)
