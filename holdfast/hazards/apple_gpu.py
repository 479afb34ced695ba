"""What the mps hazards share: how a log shows that the Apple GPU was in use, and when a machine would use it."""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan
from holdfast.hazards import seen

# The word alone, so that neither "mpsgraph" nor NVIDIA's "nvidia-cuda-mps" counts.
MPS_WORD = r"(?i:(?<![\w-])mps(?::\d)?(?![\w-]))"

ON_MPS = seen("log", MPS_WORD)
HUNG = seen("exit", r"hang")


def uses_mps(facts: MachineFacts, plan: Plan) -> bool:
    """True when a run of this plan would land on the Apple GPU."""
    if plan.device not in ("auto", "mps"):
        return False
    return facts.os == "macos" and (facts.arch == "arm64" or any(gpu.kind == "mps" for gpu in facts.gpus))
