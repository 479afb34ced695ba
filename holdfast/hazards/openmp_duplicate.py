"""Two copies of an OpenMP runtime are loaded into one process.

What you see: "OMP: Error #15" and an abort; or, with no message at all, a segmentation fault in `__kmp_suspend_64`.
Why: torch, faiss, scikit-learn and others each bundle their own libomp. On macOS the copies share weak symbols, so one
copy's threads run the other copy's code on empty tables. KMP_DUPLICATE_LIB_OK only silences the check: in four
independent reports the abort then became a segmentation fault.
What we do: keep the second package out of the training process, or run on one OpenMP thread.
"""

import re
from itertools import pairwise

from holdfast.core.evidence import Evidence, Frame, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, ended_by, judged, proves, seen, suggests

_IMAGE_SPAN_BYTES = 2 << 20  # a libomp image is under 1 MB, so frames further apart stand in two of them
_OPENMP_FRAME = r"__kmp|kmp_flag|kmp_basic_flag"
# How a log reveals a Mac although its paths were removed.
_MAC = (
    r"zsh: (?:segmentation fault|abort|bus error)|^\[\d+\]\s+\d+ segmentation fault|Segmentation fault: 11|Abort trap: 6"
    r"|(?i:darwin|macos|\.dylib|homebrew|Python\.framework)|EXC_BAD_ACCESS"
)
# Packages that bundle the second runtime, and packages that import those.
_SECOND_PACKAGE = (
    r"(?i)\bsklearn\b|scikit[-_]learn|_?kmeans|swigfaiss|\bfaiss\b|lightgbm|xgboost|sentence[-_ ]?transformers?"
    r"|bertopic|\btxtai\b|hdbscan|\bumap\b|FlagEmbedding"
)

_SILENCER = "KMP_DUPLICATE_LIB_OK"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    pairs = [
        f"{pair.first} then {pair.second}: {pair.copies} copies, {pair.because}"
        for pair in facts.conflicts
        if pair.runtime == "openmp" and pair.outcome == "crash"
    ]
    silenced = [
        f"{variable.name}={variable.value} silences the check, not the crash"
        for variable in facts.variables
        if variable.name == _SILENCER and variable.verdict == "harmful"
    ]
    if pairs:
        return Invited("; ".join(pairs + silenced), "warning", variables=(_SILENCER,))
    unset = Remedy("unset it", command="unset KMP_DUPLICATE_LIB_OK")
    return Invited(silenced[0], "note", (unset,), variables=(_SILENCER,)) if silenced else None


def _two_images(evidence: Evidence) -> Passage | None:
    """OpenMP frames of one thread from two images, by load address or by the report's image number."""
    for stack in evidence.stacks:
        frames = [frame for frame in stack.frames if re.search(_OPENMP_FRAME, frame.function)]
        for upper, lower in pairwise(frames):
            if _apart(upper, lower):
                return Passage("frame", upper.line, f"{upper.function} and {lower.function} are in two OpenMP images")
    return None


def _apart(upper: Frame, lower: Frame) -> bool:
    if upper.image_base is not None and lower.image_base is not None:
        return upper.image_base != lower.image_base
    if upper.address is not None and lower.address is not None:
        return abs(upper.address - lower.address) > _IMAGE_SPAN_BYTES
    return False


def _dies_in_openmp(evidence: Evidence) -> Passage | None:
    """A crash whose innermost frame is the runtime's wait or wake-up; idle threads have that frame too, but below a wait."""
    if not evidence.has_signal("SIGSEGV", "SIGBUS", "SIGABRT"):
        return None
    for stack in evidence.stacks:
        top = stack.frames[0]
        if re.match(
            r"(?:void )?__kmp_(?:suspend|resume|execute_tasks|fork_barrier|hyper_barrier|invoke_microtask)",
            top.function,
        ):
            return Passage("frame", top.line, f"{top.function} ({top.module})")
    return None


HAZARD = Hazard(
    slug="openmp-duplicate",
    title="two OpenMP runtimes were loaded into one process",
    kind="crash",
    invited_by=invited_by,
    signs=(
        proves("log", r"OMP: Error #15\b"),
        proves("log", r"Initializing lib\w*omp\S*, but found lib\w*omp\S* already initialized"),
        proves("log", r"multiple copies of the OpenMP runtime have been linked"),
        judged("proves", _two_images),
        judged("suggests", _dies_in_openmp),
        suggests("log", r"stop reason = EXC_BAD_ACCESS[^\n]*\n[^\n]*lib(?:omp|iomp5)\S*`(?:void )?__kmp"),
        suggests(
            "log",
            r"lib(?:omp|iomp5)\S*`(?:void )?__kmp_(?:suspend|resume|execute_tasks)",
            also=(ended_by("SIGSEGV", "SIGBUS", "SIGABRT"),),
        ),
        suggests("log", r"MKL_THREADING_LAYER=INTEL is incompatible with libgomp"),
        # OpenMP in the second package, on a Mac, and a segmentation fault: all that is left if nothing was printed.
        suggests(ended_by("SIGSEGV"), also=(seen("log", _MAC), seen("log", _SECOND_PACKAGE))),
        suggests("log", r"KMP_DUPLICATE_LIB_OK", also=(ended_by("SIGSEGV", "SIGABRT"),)),
    ),
    remedies=(
        Remedy(
            "run on one OpenMP thread",
            change={"threads": 1, "OMP_NUM_THREADS": "1"},
            cost="slower on the CPU, same on a GPU; an Error #15 may still abort",
        ),
        Remedy("let MKL use torch's runtime", change={"MKL_THREADING_LAYER": "GNU"}, cost="none; Linux only"),
        Remedy(
            "run the second package in a separate process (multiprocessing with spawn)",
            command="holdfast doctor   # names the pair and the order that loads two copies",
        ),
        Remedy(
            "install both from conda-forge, where all packages share one runtime",
            command="conda create -n train -c conda-forge pytorch scikit-learn faiss-cpu",
            cost="another installer; pip packages added later bring their own copy again",
        ),
    ),
    sources=(
        "pytorch/pytorch#149201",
        "pytorch/pytorch#121101",
        "faiss-wheels/faiss-wheels#73",
        "pytorch/pytorch#155201",
        "scikit-learn/scikit-learn#22100",
        "ContinuumIO/anaconda-issues#13221",
        "ultralytics/yolov5#5086",
        "pytorch/pytorch#37377",
    ),
    matches=(
        "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
        "OMP: Error #15: Initializing libiomp5md.dll, but found libomp140.x86_64.dll already initialized.",
        "OMP: Hint: This means that multiple copies of the OpenMP runtime have been linked into the program.",
        "* thread #3, stop reason = EXC_BAD_ACCESS (code=1, address=0x8)\n"
        "    frame #0: 0x0000000106438cf0 libomp.dylib`void __kmp_suspend_64<false, true>(int, kmp_flag_64<false, true>*) + 48\n"
        "    frame #1: 0x0000000106a28520 libomp.dylib`kmp_flag_64<false, true>::wait(kmp_info*, int) + 1880",
        "* thread #2, stop reason = EXC_BAD_ACCESS (code=1, address=0x540)\n    frame #0: 0x0000000105ae899e libomp.dylib`__kmp_suspend_initialize_thread + 30",
        "Thread 12 Crashed:\n"
        "0   libomp.dylib   0x00000001015e5828 __kmp_suspend_64 + 120\n"
        "1   libomp.dylib   0x0000000101ad5520 kmp_flag_64<false, true>::wait(kmp_info*, int) + 1880",
        Case(
            '{"id":9,"frames":[{"imageOffset":1003786,"symbol":"__kmp_suspend_initialize_thread","imageIndex":10},{"imageOffset":270310,"symbol":"__kmp_fork_barrier(int, int)","imageIndex":2}]}',
            "SIGSEGV",
        ),
        Case(
            "sklearn/cluster/_kmeans.py:870: FutureWarning: The default value of `n_init` will change\nzsh: segmentation fault  python fit.py",
            "SIGSEGV",
        ),
        "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp-a34b3233.so.1 library.",
        Case("KMP_DUPLICATE_LIB_OK=TRUE\nstep 1", "SIGSEGV"),
    ),
    near_misses=(
        "RuntimeWarning: Found Intel OpenMP ('libiomp') and LLVM OpenMP ('libomp') loaded at the same time.",
        "OMP: Error #13: Assertion failure at kmp_runtime.cpp(6480).",
        Case(
            "+ 2345 __psynch_cvwait  (in libsystem_kernel.dylib) + 8  [0x1a2b3c]\n+ 2345 __kmp_suspend_64  (in libomp.dylib) + 120  [0x1a2b3d]\n",
            "hang",
        ),
        "OMP: Info #276: omp_set_nested routine deprecated, please use omp_set_max_active_levels instead.",
    ),
)
