"""bitsandbytes found no native library for this CUDA version, or no GPU it supports.

What you see: "CUDA Setup failed despite GPU being available", "libbitsandbytes_cuda130.so ... not found", or an
optimizer that fails with "'NoneType' object has no attribute 'cquantize_blockwise...'".
Why: the package contains one library per CUDA version and loads the one that matches torch. With a newer torch, without
a CUDA runtime, with WSL's driver folder, on a Mac or on a machine without a GPU, only its CPU library is left, or none.
What we do: train without quantization if the model fits; otherwise say which package version contains the library.
"""

from holdfast.core.facts import MachineFacts, release
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, proves, seen, suggests

# First release whose Linux wheel contains a library for each CUDA version; read from the wheels 0.44.1 to 0.50.2.
_CARRIED_SINCE = (((13,), "0.48"), ((12, 9), "0.46.1"), ((12, 8), "0.45.3"), ((12, 6), "0.45"))


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    version = facts.distributions.get("bitsandbytes")
    if version is None or facts.torch is None:
        return None
    if facts.torch.cuda is None:
        if facts.has_below("bitsandbytes", "0.46") and facts.torch.rocm is None:
            return Invited(f"bitsandbytes {version} needs CUDA; torch {facts.torch.version} has none")
        return None
    needed = next((since for cuda, since in _CARRIED_SINCE if release(facts.torch.cuda) >= cuda), None)
    if needed and facts.has_below("bitsandbytes", needed):
        return Invited(f"bitsandbytes {version} has no library for CUDA {facts.torch.cuda}; {needed} and later do")
    return None


HAZARD = Hazard(
    slug="bitsandbytes-cuda",
    title="bitsandbytes has no native library for this CUDA version",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"CUDA Setup failed despite (?:GPU|CUDA) being available|bitsandbytes library load error|Configured (?:CUDA|ROCm|\w+) binary not found at .*bitsandbytes|Could not (?:find the|load) bitsandbytes (?:\w+ binary|native library)",
        ),
        proves(
            "log",
            r"libbitsandbytes_\w+\.(?:so|dll|dylib)[^\n]{0,80}(?:undefined symbol|cannot open shared object|not found|No such file|not a valid|mach-o)|(?:not found|Library not found)[^\n]{0,120}libbitsandbytes_\w+\.(?:so|dll)",
        ),
        proves(
            "log",
            r"CUDA SETUP: (?:CUDA detection failed|Required library version not found|Something unexpected|Defaulting to libbitsandbytes|Problem: |WARNING! lib(?:cuda|cudart)\.so not found|ERROR|CUDA version lower)|CUDA_SETUP: WARNING! libcudart\.so not found",
        ),
        proves(
            "log",
            r"Error: 'NoneType' object has no attribute 'c(?:quantize|dequantize|adam|gemm|lamb|lion|momentum|rmsprop|adagrad|get_managed|igemm|prefetch|fill|arange|percentile)\w*'|name 'str2optimizer\w+' is not defined|undefined symbol: c(?:adam|quantize|dequantize|get_|gemm|igemm)\w*",
        ),
        proves(
            "log",
            r"cublasLt ran into an error!|cuBLAS API failed with status \d+|Error .{4,80} at line \d+ in file \S*(?:bitsandbytes|timdettmers)\S*\.cu|in file \S*/csrc/(?:ops|pythonInterface)\.c\w*",
        ),
        proves(
            "log",
            r"not available in CPU-only version of bitsandbytes|CUDA is required but not available for bitsandbytes|are supported by the bitsandbytes version you have installed|No GPU found\. A GPU is needed for quantization",
        ),
        proves(
            "log",
            r"Using `?(?:bitsandbytes|load_in_8bit=True|load_in_4bit=True)`?.{0,60} requires|Importing from bitsandbytes failed|requires (?:the latest|a) (?:pre-release )?version of `?bitsandbytes",
        ),
        suggests(
            "log",
            r"installed version of bitsandbytes was compiled without GPU support|^'NoneType' object has no attribute 'cadam32bit_grad_fp32'|[Nn]o package metadata was found for bitsandbytes|No module named '?bitsandbytes|bitsandbytes[/\\]+cuda_setup[^\n]*(?:No GPU detected|not found)|8-bit (?:optimizers?|quantization).{0,60}(?:not available|unavailable)",
        ),
        suggests(
            "frame",
            r"bitsandbytes[/\\]+(?:cextension|cuda_setup|cuda_specs|diagnostics)",
            unless=(seen("log", r"out of memory|illegal memory access"),),
        ),
        suggests(
            "error",
            r"module 'bitsandbytes' has no attribute|cannot import name .* from '?bitsandbytes|WindowsPath' is not iterable",
        ),
    ),
    remedies=(
        Remedy(
            "install the newest bitsandbytes, which supports the newest CUDA versions",
            command="pip install --upgrade bitsandbytes && python -m bitsandbytes",
        ),
        Remedy(
            "select a CUDA version that the package supports, with its runtime on the path",
            command="BNB_CUDA_VERSION=126 LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/usr/local/cuda-12.6/lib64 python train.py",
        ),
        Remedy(
            "on WSL: put the driver's library on the loader's path",
            command="export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH",
        ),
        Remedy(
            "load the model in bfloat16 and use torch's AdamW",
            command="AutoModelForCausalLM.from_pretrained(name, dtype='bfloat16'); TrainingArguments(optim='adamw_torch')",
            cost="two to four times the memory of quantized weights",
        ),
    ),
    sources=(
        "bitsandbytes-foundation/bitsandbytes#336",
        "bitsandbytes-foundation/bitsandbytes#1559",
        "bitsandbytes-foundation/bitsandbytes#1848",
        "bitsandbytes-foundation/bitsandbytes#1688",
        "bitsandbytes-foundation/bitsandbytes#1180",
    ),
    over=("native-lib-missing", "cuda-no-kernel-image", "cublas-failure"),
    matches=(
        "RuntimeError: \n        CUDA Setup failed despite GPU being available. Please run the following command to get more information:\n\n        python -m bitsandbytes",
        "RuntimeError: Configured CUDA binary not found at /usr/local/lib/python3.12/dist-packages/bitsandbytes/libbitsandbytes_cuda131.so",
        "CUDA SETUP: Required library version not found: libbitsandbytes_cuda114_nocublaslt.so. Maybe you need to compile it from source?",
        "AttributeError: /site-packages/bitsandbytes/libbitsandbytes_cpu.so: undefined symbol: cget_col_row_stats",
        "AttributeError: 'NoneType' object has no attribute 'cquantize_blockwise_fp16_nf4'",
        "NameError: name 'str2optimizer32bit' is not defined",
        "Could not load bitsandbytes native library: /usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
        "UserWarning: The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers, 8-bit multiplication, and GPU quantization are unavailable.",
        "ImportError: Using `bitsandbytes` 8-bit quantization requires the latest version of bitsandbytes: `pip install -U bitsandbytes`",
        "Error named symbol not found at line 74 in file /mmfs1/gscratch/zlab/timdettmers/git/bitsandbytes/csrc/ops.cu",
        "RuntimeError: None of the available devices `available_devices = None` are supported by the bitsandbytes version you have installed: `bnb_supported_devices = {'cuda', 'xpu', 'cpu'}`.",
        '  File "/venv/lib/python3.11/site-packages/bitsandbytes/cextension.py", line 85, in <module>\n    lib = get_native_library()\n',
        "AttributeError: module 'bitsandbytes' has no attribute 'functional'",
    ),
    near_misses=(
        Case(
            "UserWarning: The installed version of bitsandbytes was compiled without GPU support.\n{'train_runtime': 61.2}",
            "0",
        ),
        "AssertionError: Torch not compiled with CUDA enabled",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
    ),
)
