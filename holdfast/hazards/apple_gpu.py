"""Shared by the mps hazards: whether a log shows the Apple GPU in use, and whether a run would use it."""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan
from holdfast.hazards import seen

# Matches "mps", "mps:0" and "y_mps", but not "mpsgraph", NVIDIA's "cuda-mps" or "MPS available but not used".
_IS_OFF = r"(?!(?:_device)?['\"]?\s*[=:]\s*(?:False|None|null)\b|[ ._]*(?:is_)?(?:available|built)(?:\W{1,5}(?:False|No)| but not used)|\)?, used: False)"
MPS_WORD = rf"(?i:(?<![A-Za-z0-9-])mps(?::\d)?(?![A-Za-z0-9-]){_IS_OFF})"

ON_MPS = seen("log", MPS_WORD)


def uses_mps(facts: MachineFacts, plan: Plan) -> bool:
    """True if a run with this plan would use the Apple GPU."""
    if plan.device not in ("auto", "mps"):
        return False
    return facts.os == "macos" and (facts.arch == "arm64" or any(gpu.kind == "mps" for gpu in facts.gpus))
