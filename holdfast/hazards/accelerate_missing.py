"""A training library needs accelerate, which is missing, too old, or was installed too late.

What you see: an ImportError about `accelerate>=...` when the Trainer or `device_map` is used, or a NameError for a name
that only accelerate provides (`PartialState`, `init_empty_weights`).
Why: transformers treats accelerate as optional and looks for it once, at import. A notebook that installs it later
keeps the old result.
What we do: report it before the run and name the one package to install. The process must be restarted afterwards.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves

_OLDEST = {"5.0": "1.1.0", "4.46": "0.26.0", "4.30": "0.20.1"}  # transformers -> what its Trainer asks for


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    transformers = facts.distributions.get("transformers")
    if transformers is None or "torch" not in facts.distributions:
        return None
    if "accelerate" not in facts.distributions:
        return Invited(f"transformers {transformers} is installed without accelerate; its Trainer refuses to start")
    for since, needed in _OLDEST.items():
        if facts.has_at_least("transformers", since):
            if facts.has_below("accelerate", needed):
                installed = facts.distributions["accelerate"]
                return Invited(f"accelerate {installed}; the Trainer of transformers {transformers} needs {needed}")
            return None
    return None


HAZARD = Hazard(
    slug="accelerate-missing",
    title="accelerate is missing or too old",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"[Rr]equires? (?:the )?(?:latest )?(?:library )?[`'\"]?[Aa]ccelerate\b(?!\.)"),
        proves(
            "log",
            r"(?:low_cpu_mem_usage|device_map|load_in_[48]bit|[48]-bit quantization)[^\n]{0,80}requires? [`'\"]?[Aa]ccelerate",
        ),
        proves("log", r"No module named ['\"]?accelerate\b(?!\.)"),
        proves(
            "error",
            r"[Aa]ccelerate`?(?: library| package)? (?:is|was) (?:required|not installed|not found|not available)",
        ),
        proves("error", r"[Pp]lease (?:`?pip )?install (?:the )?[`'\"]?accelerate\b"),
        proves(
            "log",
            r"accelerate: (?:command )?not found|'accelerate' is not recognized as an internal or external command",
        ),
        proves("error", r"accelerate[`'\"]?\s*[<>=!~]=?\s*\d[\d.]*[^\n]{0,40}(?:is required|but found|not found)"),
        # transformers imports these names only if it found accelerate.
        proves(
            "log",
            r"name '(?:init_empty_weights|PartialState|AcceleratorState|dispatch_model|infer_auto_device_map"
            r"|get_balanced_memory|set_module_tensor_to_device|load_offloaded_weights|is_accelerate_available)' is not defined",
        ),
    ),
    remedies=(
        Remedy(
            "install accelerate, then start a new process (in a notebook: restart the runtime)",
            command="python -m pip install --upgrade accelerate",
            cost="none",
        ),
    ),
    sources=("huggingface/transformers#24147", "QwenLM/Qwen3#173", "googlecolab/colabtools#4136"),
    matches=(
        "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=0.26.0`: Please run `pip install transformers[torch]`",
        "ImportError: Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate: `pip install accelerate`",
        "ImportError: Using `load_in_8bit=True` requires Accelerate: `pip install accelerate` and the latest version of bitsandbytes",
        "ModuleNotFoundError: No module named 'accelerate'",
        "NameError: name 'PartialState' is not defined",
        "train.sh: line 3: accelerate: command not found",
        "ImportError: accelerate is required when loading a GPTQ model",
        "ImportError: To use this feature, please install accelerate",
        "ImportError: accelerate>=0.21.0 is required for a normal load of this model, but found accelerate==0.20.3",
    ),
    near_misses=(
        "ImportError: cannot import name 'clear_device_cache' from 'accelerate.utils.memory'",
        "TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'",
        "ModuleNotFoundError: No module named 'accelerate.utils.memory'",
        "Using the `WANDB_DISABLED` environment variable is deprecated; accelerate launches on 1 process",
    ),
)
