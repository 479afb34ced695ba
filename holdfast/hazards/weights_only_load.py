"""torch refuses to unpickle a checkpoint that contains more than weights.

What you see: "Weights only load failed ... Unsupported global: GLOBAL numpy.core.multiarray._reconstruct", often when
one of your own runs is resumed after an upgrade of torch.
Why: since torch 2.6 `torch.load` accepts only weights by default. Optimizer states, random states and argument objects
saved by older code contain NumPy or library classes. transformers in turn refuses `torch.load` with torch before 2.6.
What we do: write safetensors and plain JSON, which are safe to load. For your own old files, allow the classes by name.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.has_at_least("transformers", "4.52") and facts.has_below("torch", "2.6"):
        versions = f"transformers {facts.distributions['transformers']} with torch {facts.distributions['torch']}"
        return Invited(f"{versions}: checkpoints in torch's own format will be refused, resume included")
    return None


HAZARD = Hazard(
    slug="weights-only-load",
    title="torch refused to load more than weights from a checkpoint",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"Weights only load failed"),
        proves("log", r"WeightsUnpickler error|Unsupported global: GLOBAL|was not an allowed global by default"),
        proves("log", r"types accepted by default with weights_only"),
        proves("log", r"serious vulnerability issue in `?torch\.load"),
        proves("log", r"safely load weights when explicit pickle_module"),
        proves("log", r"'weights_only' is an invalid keyword argument for (?:Unpickler|load)"),
        proves("log", r"load\(\) got an unexpected keyword argument 'weights_only'"),
        suggests("error", r"weights_only|add_safe_globals|safe_globals\("),
        suggests("log", r"Re-running `torch\.load` with `weights_only` set to `False`"),
    ),
    remedies=(
        Remedy(
            "for your own files: let torch load them as before",
            change={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
            cost="a pickle can run code: only for files this machine wrote; no effect if the call itself asks for weights only",
        ),
        Remedy(
            "allow only the classes named in the message",
            command="torch.serialization.add_safe_globals([numpy._core.multiarray._reconstruct, numpy.ndarray, numpy.dtype])",
        ),
        Remedy(
            "turn off weights_only for this one call",
            command="torch.load(path, weights_only=False)",
            cost="a pickle can run code: only for files this machine wrote",
        ),
        Remedy(
            "if transformers refuses an old torch: upgrade torch",
            command="python -m pip install --upgrade 'torch>=2.6'",
        ),
    ),
    sources=(
        "nanoporetech/remora#226",
        "modelscope/ms-swift#5808",
        "open-retina/open-retina#186",
        "huggingface/transformers#37785",
        "hiyouga/LlamaFactory#8379",
    ),
    matches=(
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options",
        "\tWeightsUnpickler error: Unsupported global: GLOBAL deepspeed.runtime.fp16.loss_scaler.LossScaler was not an allowed global by default.",
        "ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now require users to upgrade torch to at least v2.6",
        "TypeError: 'weights_only' is an invalid keyword argument for Unpickler()",
        "WeightsUnpickler error: Unsupported class. Please check the list of types accepted by default with weights_only in the docs",
        "RuntimeError: Can not safely load weights when explicit pickle_module is specified",
        "TypeError: load() got an unexpected keyword argument 'weights_only'",
        "Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but it can result in arbitrary code execution.",
    ),
    near_misses=(
        "FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value), which uses the default pickle module implicitly.",
        "_pickle.UnpicklingError: invalid load key, '<'.",
        "UserWarning: Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD detected, since the`weights_only` argument was not explicitly passed",
    ),
)
