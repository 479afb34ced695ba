"""Code that is compiled during the run failed to compile.

What you see: "BackendCompilerFailed", "InductorError", "Failed to find C compiler", "Python.h: No such file", "Error
building extension 'fused_adam'" or "ninja: build stopped".
Why: torch.compile, Triton and DeepSpeed generate and build code at run time. That needs a C compiler, Python's headers
and, for CUDA extensions, a CUDA toolkit that matches torch; it also needs a graph and a GPU that the compiler supports.
What we do: run without compiling, which gives the same result, and say what the build lacked.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

_TOKENIZERS = seen("log", r"(?i)rust compiler|cargo|tokenizers|maturin|setuptools-rust")


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if not plan.compile or facts.torch is None:
        return None
    has_triton = any(name in facts.distributions for name in ("triton", "triton-windows", "pytorch-triton"))
    if facts.torch.cuda and not has_triton and plan.device in ("auto", "cuda"):
        return Invited("the plan compiles for CUDA, but Triton is not installed")
    return None


HAZARD = Hazard(
    slug="compile-failure",
    title="code that is compiled at run time failed to compile",
    kind="error",
    invited_by=invited_by,
    signs=(
        # torch.compile
        proves(
            "log",
            r"BackendCompilerFailed|InductorError|LoweringException|InvalidCxxCompiler|CppCompileError|CUDACompileError|TritonMissing|InternalTorchDynamoError|torch\._dynamo\.exc\.(?!ObservedAttr)\w+:|FailOnRecompileLimitHit",
        ),
        proves(
            "log",
            r"Cannot find a working triton installation|(?:torch\.compile|Dynamo) is not supported on Python|not yet supported for torch\.compile|Compiler: \S+ is not found",
        ),
        # Triton
        proves(
            "log",
            r"triton\.(?:compiler|runtime)\.(?:errors\.|code_generator\.|autotuner\.)?\w*(?:Error|OutOfResources)|PassManager::run failed|Internal Triton PTX codegen error|ptxas (?:fatal|error)|out of resource: shared memory, Required|cannot import name '\w+' from 'triton|No module named '?triton\b",
        ),
        proves(
            "log",
            r"Failed to find C compiler|fatal error: '?omp\.h|library (?:not found for -l|')omp\b|C\+\+ compile error|fatal error: Python\.h: No such file|cannot find -l(?:cuda|python|nvrtc|cudart|aio|curand)\b|No working C\+\+ compiler|Failed to find CUDA\.$",
        ),
        suggests("error", r"Triton Error \[CUDA\]: (?!out of memory|an illegal|device kernel)"),
        # extensions built at run time: torch.utils.cpp_extension, DeepSpeed, Megatron, apex
        proves(
            "log",
            r"Error building extension|ninja: build stopped|Command '\['(?:\S*/)?ninja'|Ninja is required to load C\+\+ extensions|Error compiling objects for extension",
        ),
        proves(
            "log",
            r"nvcc fatal|CUDA_HOME environment variable is not set|CUDA_HOME does not exist|MissingCUDAException|CUDAMismatchException|Unable to JIT load the \w+ op|[Uu]nable to (?:JIT|pre-compile|compile) .{0,60}(?:op|ops|extension)",
        ),
        proves(
            "log",
            r"detected CUDA version \([\d.]+\) mismatches the version that was used to compile|does not match the version torch was compiled with|unsupported GNU version! gcc versions later|unsupported Microsoft Visual Studio version|You need C\+\+\d+ to compile PyTorch",
        ),
        proves(
            "log",
            r"(?:torch_extensions|fused_adam|cpu_adam|transformer_inference|async_io|utils|fused_lamb)/\w+\.so: cannot open shared object file|'\w*(?:CPUAdam|CPUAdagrad)' object has no attribute 'ds_opt_\w+'|No module named '?(?:fused_adam\w*|cpu_adam|amp_C|apex_C|fused_layer_norm_cuda|fused_weight_gradient_mlp_cuda|scaled_\w+softmax_cuda)|requires cuda extensions",
        ),
        proves(
            "log",
            r"Command '?\[?['\"](?:[^'\"\n]*[/\\])?(?:gcc|g\+\+|cc|clang\+*|c\+\+|cl|nvcc|[\w-]+-(?:gcc|cc|g\+\+))(?:\.(?:exe|EXE))?['\" ][\s\S]{0,1500}returned non-zero exit status",
        ),
        suggests(
            "log",
            r"error: command '?\S*(?:gcc|g\+\+|nvcc|cl\.exe|clang)\S*'? failed|(?:gcc|g\+\+|cc1plus|collect2|nvcc)\S*: (?:fatal )?error|Microsoft Visual C\+\+ \d+\.\d+ (?:or greater )?is required|FAILED: \S+\.(?:cuda\.)?o\b",
            unless=(_TOKENIZERS,),
        ),
        suggests("frame", r"torchinductor_\w+[/\\]", unless=(seen("log", r"out of memory|CUDA error"),)),
        suggests(
            "frame",
            r"_inductor[/\\]|_dynamo[/\\](?:output_graph|convert_frame|symbolic_convert|backends)|_functorch[/\\]aot_autograd|_run_ninja_build|_jit_compile \(|jit_load \(|triton[/\\](?:compiler|backends|runtime[/\\](?:build|jit|autotuner))",
            unless=(seen("error", r"Error"),),
        ),
        suggests("error", r"Set TORCHDYNAMO_VERBOSE=1|Set TORCH_LOGS=\"\+dynamo\""),
    ),
    remedies=(
        Remedy(
            "run without torch.compile",
            change={"compile": False, "TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"},
            cost="slower steps, the same result",
        ),
        Remedy(
            "install a compiler and Python's headers",
            command="sudo apt install build-essential python3-dev ninja-build",
        ),
        Remedy(
            "install a CUDA toolkit that matches torch and set CUDA_HOME to it",
            command="conda install -c nvidia cuda-nvcc=12.8 && export CUDA_HOME=$CONDA_PREFIX",
        ),
        Remedy(
            "delete half-built extensions",
            command="rm -rf ~/.cache/torch_extensions ~/.triton/cache /tmp/torchinductor_$USER",
        ),
        Remedy(
            "use torch's optimizer instead of a fused one",
            command='deepspeed config: {"optimizer": {"params": {"torch_adam": true}}}',
        ),
    ),
    sources=(
        "daydreamlive/scope#84",
        "pytorch/pytorch#119054",
        "triton-lang/triton#3708",
        "deepspeedai/DeepSpeed#885",
        "deepspeedai/DeepSpeed#6892",
        "unslothai/unsloth#1175",
    ),
    over=("native-lib-missing",),
    matches=(
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Cannot find a working triton installation.",
        "torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpb/main.c', '-O3', '-shared']' returned non-zero exit status 1.",
        "RuntimeError: Error building extension 'fused_adam'",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "/tmp/tmpq/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory\ncompilation terminated.",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        "deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.3 does not match the version torch was compiled with 11.7, unable to compile cuda/cpp extensions",
        "nvcc fatal   : Unsupported gpu architecture 'compute_89'",
        "ImportError: /home/user/.cache/torch_extensions/py38_cu113/cpu_adam/cpu_adam.so: cannot open shared object file: No such file or directory",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        '  File "/lib/python3.11/site-packages/torch/_inductor/compile_fx.py", line 1886, in compile_fx\n    return aot_autograd(\n  File "/lib/python3.11/site-packages/torch/_dynamo/backends/common.py", line 83, in __call__',
        "RuntimeError: Triton Error [CUDA]: device-side kernel image is invalid",
        "error: command '/usr/bin/g++' failed with exit code 1",
        '  File "/tmp/torchinductor_jo/ab/cabc.py", line 31, in call\n',
        "RuntimeError: Failed running call_function\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace",
    ),
    near_misses=(
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        "error: can't find Rust compiler\nerror: command 'gcc' failed: building wheel for tokenizers",
        "W0601 torch/_dynamo/convert_frame.py:917] torch._dynamo hit config.cache_size_limit (8)",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
)
