"""What the mps hazards share: how a log shows that the Apple GPU was in use, and when a machine would use it."""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan
from holdfast.hazards import seen

# "mps", "mps:0" or "y_mps", but neither "mpsgraph", NVIDIA's "cuda-mps" nor "MPS available but not used".
_IS_OFF = r"(?!(?:_device)?['\"]?\s*[=:]\s*(?:False|None|null)\b|[ ._]*(?:is_)?(?:available|built)(?:\W{1,5}(?:False|No)| but not used)|\)?, used: False)"
MPS_WORD = rf"(?i:(?<![A-Za-z0-9-])mps(?::\d)?(?![A-Za-z0-9-]){_IS_OFF})"

ON_MPS = seen("log", MPS_WORD)
HUNG = seen("exit", r"hang")


def uses_mps(facts: MachineFacts, plan: Plan) -> bool:
    """True when a run of this plan would land on the Apple GPU."""
    if plan.device not in ("auto", "mps"):
        return False
    return facts.os == "macos" and (facts.arch == "arm64" or any(gpu.kind == "mps" for gpu in facts.gpus))
