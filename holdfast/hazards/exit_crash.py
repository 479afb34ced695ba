"""The program had finished; native code crashed while the process was shutting down.

What you see: the last line is printed and the model is saved; then "terminate called without an active exception", or
"Fatal Python error" with "Python runtime state: finalizing", and "Aborted" or exit code 134.
Why: a library left a thread running. In C++, destroying a thread that was not joined aborts the process, and Python
before 3.14 unwound threads that returned to it during shutdown through the C++ code on their stack. Or an exit handler
(`atexit`) of a library or the program crashed; the remaining exit handlers then did not run.
What we do: treat a run whose program reached its last line without an error as finished, do not retry it, and report
the crash.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen, suggests

_BUG = (seen("error", r"^(?:\w+\.)*\w*(?:Error|Exception)\b"),)  # it was a way down after that

HAZARD = Hazard(
    slug="exit-crash",
    title="native code crashed during shutdown, after the program had finished",
    kind="crash",
    signs=(
        proves("log", r"^\s*Python runtime state: finalizing", also=(seen("log", r"Fatal Python error"),), unless=_BUG),
        suggests("log", r"^\s*terminate called without an active exception", unless=_BUG),
        suggests("log", r"^\s*FATAL: exception not rethrown", unless=_BUG),
    ),
    over=("segfault-other",),
    remedies=(
        Remedy(
            "use what was saved: files that the program had closed are complete",
            command="holdfast run -- python train.py   # says whether its last line was reached",
        ),
        Remedy(
            "close what owns the thread before the last line: the loader, the dataset, the client, the process group",
            command="torch.distributed.destroy_process_group()   # or .close() of what was opened",
        ),
        Remedy(
            "exit without shutting libraries down, once everything is saved",
            command="sys.stdout.flush(); os._exit(0)",
            cost="open files lose what was not flushed",
        ),
        Remedy("update the library that owns the thread", command="pip install -U datasets pyarrow"),
    ),
    sources=(
        "huggingface/datasets#7357",
        "python/cpython#87135",
        "PaddlePaddle/Paddle#34501",
        "NKI-AI/direct#238",
        "lance-format/lance#4152",
        "pybind/pybind11#1360",
        "https://eel.is/c++draft/thread.thread.destr",
    ),
    matches=(
        "saved to out/final\nterminate called without an active exception\nAborted (core dumped)",
        "Fatal Python error: PyGILState_Release: thread state 0x7fa1f409ade0 must be current when releasing\n"
        "Python runtime state: finalizing (tstate=0x0000000000ad2958)\n\nThread 0x00007fa33d157740 (most recent call first):\n  <no Python frame>",
        Case("epoch 3 done\nFATAL: exception not rethrown", "SIGABRT"),
    ),
    near_misses=(
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  out of room\nAborted (core dumped)",
        'Fatal Python error: Aborted\n\nCurrent thread 0x00007f3a (most recent call first):\n  File "train.py", line 12 in step',
        "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'label'\nterminate called without an active exception",
    ),
    reproduced_by="tests/lab/test_exit_crash.py",
)
