"""The memory limits of the Apple GPU contradict each other or were turned off.

What you see: "RuntimeError: invalid low watermark ratio 1.4" at the first tensor; or, with the limit off, a Mac that
swaps until the process is killed.
Why: `PYTORCH_MPS_HIGH_WATERMARK_RATIO` must not be below the low ratio, which is 1.4 by default, so lowering the limit
takes two variables. The value 0.0, which torch's own message suggests, removes the limit and frees no memory.
What we do: restore the default limits.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, ended_by, proves, seen, suggests

_HIGH = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
_LOW = "PYTORCH_MPS_LOW_WATERMARK_RATIO"
_DEFAULTS = {_HIGH: 1.7, _LOW: 1.4}


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    set_here = {variable.name: variable.value for variable in facts.variables if variable.name in _DEFAULTS}
    if not set_here:
        return None
    shown = ", ".join(f"{name}={value}" for name, value in set_here.items())
    try:
        high, low = (float(set_here.get(name, default)) for name, default in _DEFAULTS.items())
    except ValueError:
        return Invited(f"{shown}: not a number", "blocker", variables=(*set_here,))
    if high == 0:
        return Invited(f"{shown}: no limit, so the system swaps and may kill the run", variables=(*set_here,))
    if not 0 < high <= 2 or not 0 <= low <= high:
        seen = f"{shown}: torch needs 0 <= low <= high <= 2, and low is {low:g}"
        return Invited(seen, "blocker", variables=(*set_here,))
    return None


HAZARD = Hazard(
    slug="mps-watermark-config",
    title="the Apple GPU's memory limits contradict each other",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"invalid (?:low|high) watermark ratio"),
        suggests(
            "error",
            r"(?i)stod: no conversion|Invalid fraction value|could not convert string to float",
            also=(seen("log", r"(?i)WATERMARK_RATIO|memory_fraction"),),
        ),
        # With the limit off, an oversized run ends here.
        suggests(
            "error",
            r"Killed|killed|SIGKILL",
            also=(seen("log", rf"(?<!Use ){_HIGH}['\"\]]*\s*=\s*['\"]?0(?:\.0*)?\b"),),
        ),
        suggests(ended_by("SIGKILL"), also=(seen("log", rf"(?<!Use ){_HIGH}['\"\]]*\s*=\s*['\"]?0(?:\.0*)?\b"),)),
    ),
    remedies=(
        Remedy("use the default limits", change={_HIGH: "1.7", _LOW: "1.4"}),
        Remedy(
            "lower both limits together",
            change={_HIGH: "0.7", _LOW: "0.6"},
            cost="an oversized run stops early instead of swapping",
        ),
        Remedy("remove the variables from the shell's startup files", command=f"unset {_HIGH} {_LOW}"),
    ),
    sources=("kohya-ss/sd-scripts#603", "kshetrajna12/reflex#1", "pytorch/pytorch#91268", "gensyn-ai/rl-swarm#59"),
    over=("mps-oom",),
    matches=(
        "RuntimeError: invalid low watermark ratio 1.4",
        "RuntimeError: invalid high watermark ratio 1.7",
        Case(
            "export PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0\nStarting training...\nzsh: killed     python train.py",
            "SIGKILL",
        ),
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=high\nRuntimeError: stod: no conversion",
    ),
    near_misses=(
        "RuntimeError: MPS backend out of memory (MPS allocated: 7.43 GB, other allocations: 24.46 GB, max allowed: 32.00 GB). Tried to allocate 129.21 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        "zsh: killed     python train.py",
    ),
)
