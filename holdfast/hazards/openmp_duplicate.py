"""Two copies of an OpenMP runtime are loaded into one process.

What you see: "OMP: Error #15" and an abort; or, with no message at all, a segmentation fault in `__kmp_suspend_64`.
Why: torch, faiss, scikit-learn and others each carry their own libomp; on macOS the copies share weak symbols, so one
copy's threads run the other copy's code on its own empty tables.
What we do: keep the second package out of the training process; otherwise run on one OpenMP thread.
"""

from holdfast.core.evidence import Evidence, Frame, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, judged, proves, suggests

_IMAGE_SPAN_BYTES = 2 << 20  # a libomp image is under 1 MB, so frames further apart stand in two of them


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    crashing = [pair for pair in facts.conflicts if pair.runtime == "openmp" and pair.outcome == "crash"]
    if crashing:
        pairs = "; ".join(f"{pair.first} then {pair.second}: {pair.because}" for pair in crashing)
        return Invited(f"{len(crashing)} import orders load two OpenMP runtimes that may crash: {pairs}")
    return None


def _two_images(evidence: Evidence) -> Passage | None:
    """OpenMP frames of one thread that stand in two images: by load address, or by the report's image number."""
    for stack in evidence.stacks:
        frames = [frame for frame in stack.frames if "__kmp_" in frame.function or "kmp_flag" in frame.function]
        for upper, lower in zip(frames, frames[1:], strict=False):
            if _apart(upper, lower):
                return Passage("frame", upper.line, f"{upper.function} and {lower.function} stand in two OpenMP images")
    return None


def _apart(upper: Frame, lower: Frame) -> bool:
    if upper.image_base is not None and lower.image_base is not None:
        return upper.image_base != lower.image_base
    if upper.address is not None and lower.address is not None:
        return abs(upper.address - lower.address) > _IMAGE_SPAN_BYTES
    return False


HAZARD = Hazard(
    slug="openmp-duplicate",
    title="two OpenMP runtimes were loaded into one process",
    kind="crash",
    invited_by=invited_by,
    signs=(
        proves("log", r"OMP: Error #15\b"),
        proves("log", r"Initializing lib\w*omp\S*, but found lib\w*omp\S* already initialized"),
        judged("proves", _two_images),
        suggests("frame", r"__kmp_suspend_(?:64|initialize_thread)"),
    ),
    remedies=(
        Remedy(
            "run on one OpenMP thread",
            change={"threads": 1, "OMP_NUM_THREADS": "1"},
            cost="slower on the CPU, same on a GPU",
        ),
        Remedy(
            "keep the second package out of the training process, or take both from one conda-forge environment",
            command="holdfast doctor",
        ),
    ),
    sources=(
        "pytorch/pytorch#149201",
        "pytorch/pytorch#121101",
        "faiss-wheels/faiss-wheels#73",
        "pytorch/pytorch#155201",
    ),
    matches=("OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",),
    near_misses=(
        "RuntimeWarning: Found Intel OpenMP ('libiomp') and LLVM OpenMP ('libomp') loaded at the same time.",
        "OMP: Error #13: Assertion failure at kmp_runtime.cpp(6480).",
    ),
)
