"""Environment variables that matter to a run, and what each really does. Advice on the web is often wrong about them.

Rows with the same name are tried in order; the first whose `when` matches the value counts. Secrets are never shown.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.core.facts import Answer, Variable

_ON = r"(?i)1|true|yes|y|on"
_NOT_BELOW = 1.4  # torch's default low mark on unified memory


@dataclass(frozen=True, slots=True)
class EnvVar:
    """The effect of a variable if its value matches."""

    name: str
    effect: str
    source: str
    when: str = ".*"  # the whole value
    verdict: Literal["works", "useless", "harmful"] = "works"
    only_on: str = ""  # a value of sys.platform; elsewhere the variable has no effect


KNOWN = (
    EnvVar(
        "KMP_DUPLICATE_LIB_OK",
        "silences the check for a second OpenMP runtime; a crash or wrong results are still possible",
        "pytorch/pytorch#78490, faiss-wheels/faiss-wheels#73",
        when=_ON,
        verdict="harmful",
    ),
    EnvVar("KMP_DUPLICATE_LIB_OK", "keeps the check for a second OpenMP runtime on", "pytorch/pytorch#78490"),
    EnvVar(
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "has no effect: it does not turn MPS off",
        "ATen/mps/MPSFallback.mm",
        when="0|",
        verdict="useless",
        only_on="darwin",
    ),
    EnvVar(
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "runs operations that MPS lacks on the CPU; read once, when torch is imported",
        "ATen/mps/MPSFallback.mm",
        only_on="darwin",
    ),
    EnvVar(
        "PYTORCH_MPS_FORCE_DISABLE",
        "has no effect: torch does not read it",
        "huggingface/setfit#569",
        verdict="useless",
    ),
    EnvVar(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "removes the limit on MPS memory, so the system kills the run before torch raises an error",
        "PyTorch documentation, MPS environment variables; gensyn-ai/rl-swarm#59",
        when=r"0+(?:\.0*)?",
        verdict="harmful",
        only_on="darwin",
    ),
    EnvVar(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "limits MPS memory to this multiple of what Metal recommends; the default is 1.7",
        "PyTorch documentation, MPS environment variables",
        only_on="darwin",
    ),
    EnvVar(
        "PYTORCH_MPS_LOW_WATERMARK_RATIO",
        "sets the soft limit of MPS memory; the default is 1.4",
        "PyTorch documentation, MPS environment variables",
        only_on="darwin",
    ),
    EnvVar(
        "PYTORCH_MPS_GRAPH_CACHE_POLICY",
        "limits the compiled graphs that MPS keeps, one per tensor shape; torch 2.13 and later",
        "pytorch/pytorch#182648",
        only_on="darwin",
    ),
    EnvVar(
        "ACCELERATE_USE_CPU",
        "moves only Accelerate to the CPU; the Hugging Face Trainer still uses MPS without use_cpu=True",
        "transformers v5.15.1, training_args.py",
        when=_ON,
        verdict="harmful",
        only_on="darwin",
    ),
    EnvVar(
        "TOKENIZERS_PARALLELISM",
        "switches off the tokenizers' guard against fork, which can deadlock loader workers; unset is safer",
        "NVIDIA-NeMo/Megatron-Bridge#5328, huggingface/tokenizers#187",
        when=_ON,
        verdict="harmful",
    ),
    EnvVar("TOKENIZERS_PARALLELISM", "tokenizes on one thread, which is safe with fork", "huggingface/tokenizers#187"),
    EnvVar(
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY",
        "hides one check of macOS after a fork; the problem behind it remains",
        "benoitc/gunicorn#2478",
        when=_ON,
        verdict="harmful",
        only_on="darwin",
    ),
    EnvVar(
        "OMP_NUM_THREADS",
        "one CPU thread: avoids the crash of two OpenMP runtimes, but training on the CPU is slow",
        "dmlc/xgboost#11500",
        when="1",
    ),
    EnvVar("OMP_NUM_THREADS", "limits the CPU threads of torch and of other OpenMP libraries", "OpenMP specification"),
    EnvVar("MKL_NUM_THREADS", "limits the CPU threads of MKL alone", "Intel oneMKL documentation"),
    EnvVar("OPENBLAS_NUM_THREADS", "limits the CPU threads of OpenBLAS, as in NumPy", "OpenBLAS documentation"),
    EnvVar(
        "CUDA_VISIBLE_DEVICES",
        "hides every NVIDIA GPU from torch",
        "CUDA C++ Programming Guide",
        when=r"\s*|-1|NoDevFiles",
    ),
    EnvVar("CUDA_VISIBLE_DEVICES", "shows torch these NVIDIA GPUs only", "CUDA C++ Programming Guide"),
    EnvVar(
        "CUDA_LAUNCH_BLOCKING",
        "waits for every kernel, so tracebacks name the right line; slow, for debugging only",
        "PyTorch documentation, CUDA semantics",
        when=_ON,
    ),
    EnvVar(
        "TORCH_USE_CUDA_DSA",
        "has no effect at run time: it is a flag for building torch",
        "pytorch/pytorch#121894, #84609",
        verdict="useless",
    ),
    EnvVar("PYTORCH_CUDA_ALLOC_CONF", "changes how torch manages GPU memory", "PyTorch documentation, CUDA semantics"),
    EnvVar("PYTORCH_ALLOC_CONF", "changes how torch manages GPU memory", "PyTorch documentation, CUDA semantics"),
    EnvVar("TORCHDYNAMO_DISABLE", "turns torch.compile off", "PyTorch documentation", when=_ON),
    EnvVar("TORCH_COMPILE_DISABLE", "turns torch.compile off", "PyTorch documentation", when=_ON),
    EnvVar(
        "HF_HOME",
        "sets the folder of Hugging Face libraries for models, data and the token",
        "huggingface_hub 1.33 constants.py",
    ),
    EnvVar("HF_HUB_CACHE", "sets the folder of downloaded models", "huggingface_hub 1.33 constants.py"),
    EnvVar("HUGGINGFACE_HUB_CACHE", "is the old name of HF_HUB_CACHE, still read", "huggingface_hub 1.33 constants.py"),
    EnvVar(
        "TRANSFORMERS_CACHE",
        "is only read by transformers 4; version 5 reads HF_HOME or HF_HUB_CACHE",
        "transformers 4.57.1 and 5.22.2, utils/hub.py",
        verdict="useless",
    ),
    EnvVar("HF_HUB_OFFLINE", "prevents downloads: a model must be in the cache", "huggingface_hub 1.33", when=_ON),
    EnvVar("TRANSFORMERS_OFFLINE", "is the same as HF_HUB_OFFLINE", "huggingface_hub 1.33 constants.py", when=_ON),
    EnvVar("HF_ENDPOINT", "uses this address instead of huggingface.co", "huggingface_hub 1.33 constants.py"),
    EnvVar("HF_TOKEN", "is sent to the hub, for gated and private models", "huggingface_hub documentation"),
    EnvVar(
        "HF_HUB_ENABLE_HF_TRANSFER",
        "has no effect since huggingface_hub 1.0; HF_XET_HIGH_PERFORMANCE replaced it",
        "huggingface_hub 1.33 constants.py",
        when=_ON,
        verdict="useless",
    ),
    EnvVar(
        "HF_DEACTIVATE_ASYNC_LOAD",
        "loads weights one by one, which avoids a crash when bf16 is loaded as float32 on MPS",
        "huggingface/transformers#48029",
        when=_ON,
    ),
    EnvVar(
        "USE_TF",
        "keeps transformers 4 from importing TensorFlow; version 5 does not read it",
        "transformers 4.57.1 and 5.22.2, import_utils.py",
        when="(?i)0|false|no|off",
    ),
    EnvVar(
        "WANDB_MODE",
        "decides whether Weights & Biases uploads, keeps or drops the records",
        "wandb documentation",
    ),
    EnvVar("WANDB_API_KEY", "is sent to Weights & Biases if a script reports there", "wandb documentation"),
    EnvVar(
        "PYTHONPATH",
        "is searched before installed packages, so a file there can hide one",
        "Python documentation",
    ),
    EnvVar("PYTHONUNBUFFERED", "writes output immediately, also to a log file", "Python documentation", when=".+"),
    EnvVar("LD_PRELOAD", "is loaded into every program before its own libraries", "ld.so(8)"),
    EnvVar("LD_LIBRARY_PATH", "is searched before most packages' own library folders", "ld.so(8)"),
    EnvVar(
        "DYLD_LIBRARY_PATH",
        "replaces every library with the same file name; lost when a script starts through /bin/sh or /usr/bin/env",
        "dyld(1)",
        only_on="darwin",
    ),
    EnvVar(
        "DYLD_INSERT_LIBRARIES",
        "adds a library to every program; it does not replace one",
        "dyld(1)",
        only_on="darwin",
    ),
    EnvVar("HTTPS_PROXY", "sends downloads through this proxy", "requests documentation"),
    EnvVar("https_proxy", "sends downloads through this proxy", "requests documentation"),
)
_SECRET = re.compile(r"(?:TOKEN|API_KEY|SECRET|PASSWORD)$")


def probe_variables() -> Answer[tuple[Variable, ...]]:
    """The variables that are set and matter, with their real effect."""
    return Answer(read_variables(os.environ, sys.platform, sys.prefix), "the environment of this process")


def read_variables(environ: Mapping[str, str], platform: str, prefix: str) -> tuple[Variable, ...]:
    """The effect of each variable that is set, on this platform and for the Python in `prefix`."""
    names = dict.fromkeys(known.name for known in KNOWN)
    found = [_explain(name, environ, platform) for name in names if name in environ]
    return tuple(variable for variable in (*found, _other_environment(environ, prefix)) if variable)


def shown_value(name: str, value: str) -> str:
    """The value for printing, without secrets and passwords in addresses."""
    if _SECRET.search(name) and value:
        return "(set, not shown)"
    return re.sub(r"//[^/@\s]+@", "//(not shown)@", value)


def _explain(name: str, environ: Mapping[str, str], platform: str) -> Variable | None:
    value = environ[name]
    row = next((known for known in KNOWN if known.name == name and re.fullmatch(known.when, value)), None)
    if row is None:
        return None
    effect, verdict, source = row.effect, row.verdict, row.source
    if row.only_on and row.only_on != platform:
        effect, verdict = "has no effect on this system", "works"
    elif name == "PYTORCH_MPS_HIGH_WATERMARK_RATIO" and _is_below_the_low_mark(value, environ):
        effect = "is below the low mark, which torch refuses; set PYTORCH_MPS_LOW_WATERMARK_RATIO even lower"
        verdict, source = "harmful", "kohya-ss/sd-scripts#603"
    return Variable(name=name, value=shown_value(name, value), effect=effect, source=source, verdict=verdict)


def _is_below_the_low_mark(high: str, environ: Mapping[str, str]) -> bool:
    try:
        return 0 < float(high) < float(environ.get("PYTORCH_MPS_LOW_WATERMARK_RATIO") or _NOT_BELOW)
    except ValueError:
        return False


def _other_environment(environ: Mapping[str, str], prefix: str) -> Variable | None:
    """An active environment other than the one of this command, whose packages are not described."""
    active = environ.get("VIRTUAL_ENV", "")
    if not active or not Path(active).is_dir() or Path(active).resolve() == Path(prefix).resolve():
        return None
    effect = f"is the active environment, but this command runs in {prefix} and describes that one"
    return Variable(name="VIRTUAL_ENV", value=active, effect=effect, source="sys.prefix", verdict="harmful")
