"""FlashAttention was requested but is not installed, was built for another torch, or cannot run on this GPU.

What you see: "FlashAttention2 has been toggled on, but it cannot be used", "No module named 'flash_attn'",
"flash_attn_2_cuda ... undefined symbol", or "FlashAttention only supports Ampere GPUs or newer".
Why: flash-attn is a compiled extension for one torch, CUDA and Python version, and for newer NVIDIA cards only. A torch
upgrade breaks it, and some model files import it unconditionally.
What we do: use torch's scaled-dot-product attention, which gives the same result and includes such a kernel.
"""

from holdfast.core.facts import MachineFacts, release
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, proves, seen, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    version = facts.distributions.get("flash-attn")
    if version is None:
        return None
    if facts.torch is not None and facts.torch.cuda is None and facts.torch.rocm is None:
        return Invited(f"flash-attn {version} needs CUDA; torch {facts.torch.version} has none")
    for gpu in facts.gpus:
        if gpu.kind == "cuda" and gpu.capability and release(gpu.capability) < (8,):
            return Invited(f"flash-attn {version} needs compute capability 8.0; {gpu.name} has {gpu.capability}")
    return None


HAZARD = Hazard(
    slug="flash-attn-missing",
    title="the FlashAttention package cannot be used here",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"Flash ?Attention[ -]?[234]?(?:\.\d)? has been toggled on, but|(?:package|module) `?flash_attn\w*`? seems to be not installed|flash_attn seems to be not installed|`?flash_attention_[234]`?,? .{0,60}(?:not installed|not available|requires)",
        ),
        proves(
            "log",
            r"No module named '?flash_attn\w*|No module named '?(?:dropout_layer_norm|rotary_emb|xentropy_cuda_lib|fused_dense_lib)'?",
        ),
        proves(
            "log",
            r"flash_attn\w*\.(?:cpython|cp|abi3)[\w.-]*\.(?:so|pyd)\S*[^\n]{0,20}(?:undefined symbol|cannot open|version `GLIBC)|(?:undefined symbol|version `GLIBC)[^\n]*flash_attn|while importing flash_attn\w*",
        ),
        proves(
            "log",
            r"FlashAttention only supports|FlashAttention (?:forward|backward) only supports|FlashAttention only support |FlashAttention is only supported on CUDA|flash attention version does not support|upgrade (?:the )?flash[-_]attn|FlashAttention-?[23] (?:is )?not (?:supported|available|installed)",
        ),
        proves(
            "log",
            r"packages that were not found in your environment:[^\n]*flash_attn|cannot import name '\w+' from '?flash_attn|module '?flash_attn\S* has no attribute",
        ),
        proves(
            "log",
            r"Failed building wheel for flash[_-]attn|flash_attn was requested, but nvcc was not found|Could not build wheels for flash[_-]attn|flash[_-]attn[^\n]{0,60}metadata-generation-failed|metadata-generation-failed[\s\S]{0,200}flash[_-]attn",
        ),
        proves(
            "error", r"(?:ImportError|OSError)[^\n]*(?:flash_attn_(?:\d_)?(?:cuda|gpu)|site-packages[/\\]flash_attn)"
        ),
        suggests(
            "error",
            r"undefined symbol|cannot open shared object|DLL load failed|GLIBC",
            also=(seen("log", r"flash_attn(?:_interface|_2_cuda|_cuda|/|\\)"),),
            unless=(seen("error", r"bitsandbytes|torchvision|torchaudio|xformers"),),
        ),
        suggests(
            "error",
            r"(?i)flash[ _-]?att(?:n|ention)[\s\S]{0,120}(?:not (?:be )?(?:installed|available|supported|found|used)|install|requires|import|unavailable)",
        ),
        suggests("error", r"No module named '?torch'?", also=(seen("log", r"flash[_-]attn"),)),
        suggests(
            "error", r"No operator found for `memory_efficient_attention|No available kernel\.\s+Aborting execution"
        ),
    ),
    remedies=(
        Remedy(
            "use torch's scaled-dot-product attention",
            change={"attention": "sdpa"},
            cost="about as fast; the same result",
        ),
        Remedy("in a Transformers script", command="AutoModel.from_pretrained(name, attn_implementation='sdpa')"),
        Remedy("use plain attention", change={"attention": "eager"}, cost="slower, more memory for long texts"),
        Remedy(
            "build flash-attn again for the installed torch",
            command="pip uninstall -y flash-attn && pip install flash-attn --no-build-isolation --no-cache-dir",
            cost="a long build; needs a CUDA toolkit",
        ),
    ),
    sources=(
        "ayulockin/neurips-llm-efficiency-challenge#12",
        "hiyouga/EasyR1#384",
        "Dao-AILab/flash-attention#762",
        "Dao-AILab/flash-attention#1506",
        "modelscope/ms-swift#1603",
    ),
    over=("native-lib-missing", "cuda-no-kernel-image", "compile-failure"),
    matches=(
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed.",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "ImportError: This modeling file requires the following packages that were not found in your environment: flash_attn. Run `pip install flash_attn`",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "ImportError: /usr/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "RuntimeError: Failed to import transformers.models.llama.modeling_llama because of the following error (look up to see its traceback):\n"
        "/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops9_pad_enum4callERKNS_6TensorE",
        "ImportError: DLL load failed while importing flash_attn_2_cuda: The specified module could not be found.",
        "  ERROR: Failed building wheel for flash-attn",
        'flash_attn/flash_attn_interface.py", line 10, in <module>\n    import flash_attn_2_cuda as flash_attn_cuda\nImportError: libcudart.so.12: cannot open shared object file: No such file or directory',
        "  File \"/tmp/pip-req/flash-attn/setup.py\", line 19, in <module>\n    import torch\nModuleNotFoundError: No module named 'torch'",
        "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs",
    ),
    near_misses=(
        Case(
            "UserWarning: 1Torch was not compiled with flash attention. (Triggered internally at sdp_utils.cpp:263.)",
            "0",
        ),
        Case("flash_attn is not installed, falling back to sdpa\n{'train_runtime': 12.0}", "0"),
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
)
