"""Native code crashed, and it matches no known failure.

What you see: "Segmentation fault", "Bus error", SIGSEGV or exit code 139, sometimes with a Python stack.
Why: a bug in a compiled library, incompatible libraries, a damaged install, or faulty memory. The crash often happens
far from its cause.
What we do: retry with safer settings, record every stack, and report the last frames.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts, release
from holdfast.core.observations import ExitStatus, ProcessExit
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, judged, observed, seen, suggests

_CRASH_SIGNALS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
_CRASHES = (
    r"Fatal Python error: (?:Segmentation fault|Bus error|Aborted|Floating)|Segfault encountered|SegmentationFault",
    r"[Ss]egmentation fault\b|SIGSEGV|SIGBUS|\b[Bb]us error\b|EXC_BAD_ACCESS|Floating point exception",
    r"Windows fatal exception|access violation|段错误|Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento",
    r"double free or corruption|free\(\): |malloc\(\): |munmap_chunk|corrupted (?:size|double|unsorted)|stack smashing",
)
_ORDINARY = re.compile(r"^(?!.*ChildFailed)(?:\w+\.)*\w*(?:Error|Exception)\b(?!.*(?:signal|Segmentation|SIG[A-Z]))")


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    old_mac = facts.os == "macos" and facts.os_version != "" and release(facts.os_version) < (12,)
    if old_mac and facts.has_at_least("pyarrow", "16.1") and facts.has_below("pyarrow", "18"):
        remedy = Remedy("install a pyarrow that runs on this macOS", command='pip install "pyarrow<16.1"')
        return Invited(
            f"pyarrow {facts.distributions['pyarrow']} crashes on import on macOS {facts.os_version}",
            "blocker",
            (remedy,),
        )
    return None


_ENDED_ITSELF = seen("error", r"terminate called (?:after|without)|libc\+\+abi(?:\.dylib)?: terminating")


def _crash_without_an_exception(evidence: Evidence) -> Passage | ExitStatus | None:
    """A crash without an exception before it; after an exception, it is only how the process ended."""
    shown: list[Passage | ExitStatus] = [
        passage for pattern in _CRASHES if (passage := seen("log", pattern).find(evidence))
    ]
    shown = shown or [status for status in evidence.exits if status.signal in ("SIGSEGV", "SIGBUS", "SIGFPE")]
    if not shown and _ENDED_ITSELF.find(evidence):
        shown = [status for status in evidence.exits if status.signal == "SIGABRT"]
    if not shown:
        return None
    found = min(shown, key=lambda one: one.line)
    before = [error.text for error in evidence.errors if error.line < found.line or found.line == 0]
    return None if any(_ORDINARY.match(text) for text in before) else found


HAZARD = Hazard(
    slug="segfault-other",
    title="native code crashed; the cause is unknown",
    kind="crash",
    invited_by=invited_by,
    signs=(
        # pyarrow 16.1 and 17 on macOS 11 and older crash while the library is being loaded (apache/arrow#43339).
        suggests("frame", r"arrow::fs::FileSystem(?:FactoryRegistry|Registrar)"),
        suggests(observed(ProcessExit, lambda one: one.status.signal in _CRASH_SIGNALS)),
        judged("fallout", _crash_without_an_exception),
    ),
    remedies=(
        Remedy("record every thread's stack if it happens again", change={"PYTHONFAULTHANDLER": "1"}, cost="none"),
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("compute on one thread", change={"threads": 1, "OMP_NUM_THREADS": "1"}, cost="slower on the CPU"),
        Remedy("train on the CPU", change={"device": "cpu"}, cost="much slower"),
        Remedy("see the native frames of the crash", command="gdb -batch -ex run -ex bt --args python train.py"),
        Remedy(
            "in a clean environment, reinstall the library that owns the innermost frame",
            command="python -m venv fresh && fresh/bin/pip install ...",
        ),
    ),
    sources=(
        "apache/arrow#43339",
        "pytorch/pytorch#4101",
        "pytorch/pytorch#1374",
        "huggingface/datasets#6858",
        "NVlabs/SPADE#135",
    ),
    matches=(
        Case(
            "done: 20.8 tokens per second\nlibc++abi: terminating due to uncaught exception of type std::runtime_error: gone",
            "SIGABRT",
        ),
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "train.py", line 12 in forward',
        ">>> import torch\nSegmentation fault (core dumped)",
        "Windows fatal exception: access violation\n\nCurrent thread 0x00001a2c (most recent call first):",
        "Process finished with exit code -1073741819 (0xC0000005)",
        "double free or corruption (!prev)\nAborted (core dumped)",
        Case("Epoch 1:   3%|3         | 117/3900", "SIGSEGV"),
        Case(
            "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection reset by peer",
            "1",
            (ProcessExit(pid=32, name="python", rank=1, status=ExitStatus(signal="SIGSEGV"), is_first=True),),
        ),
        "0   libarrow.1700.dylib   0x000000011e0 arrow::fs::FileSystemRegistrar::FileSystemRegistrar + 82",
    ),
    near_misses=(
        "Illegal instruction (core dumped)",
        "KeyError: 'labels'\nSegmentation fault (core dumped)",
        "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.\nSegmentation fault: 11",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
