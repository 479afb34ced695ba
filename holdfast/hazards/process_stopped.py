"""A process of the run was paused and never continued.

What you see: no error and no progress; `ps` shows the state T, or D or S in a frozen container; the shell may say
"Stopped" or "suspended (tty output)".
Why: SIGSTOP or Ctrl-Z, a program that wrote to a terminal from the background, `docker pause`, a container or session
manager that froze the control group, or a debugger attached to the process.
What we do: kill the process and restart from the last checkpoint. If a frozen control group prevents the kill, say so.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="process-stopped",
    title="a process of the run was stopped or frozen externally",
    kind="hang",
    signs=(
        proves("sample", r"^pid \d+ \S.*frozen by cgroup "),
        proves("sample", r"^verdict stopped: "),
        suggests("sample", r"^verdict in a debugger: |held by the debugger with pid"),
        suggests(
            "log",
            r"^(?:zsh: |\[\d+\]\s+[+-]?\s*)?suspended \(tty (?:output|input)\)|^\[\d+\][+-]?\s+Stopped\b",
            also=(seen("exit", r"hang"),),
        ),
    ),
    remedies=(
        Remedy("continue the process", command="kill -CONT PID"),
        Remedy("continue a paused container", command="docker unpause CONTAINER"),
        Remedy(
            "thaw the control group",
            command="echo THAWED > /sys/fs/cgroup/freezer/GROUP/freezer.state   # version 2: echo 0 > .../cgroup.freeze",
        ),
    ),
    sources=("apple/turicreate#1169", "BOINC/boinc#5480", "rfjakob/earlyoom#357"),
    matches=(
        Case("step 40 loss 0.91", "hang", ("verdict stopped: process 41 is stopped (SIGSTOP)",)),
        Case(
            "step 40 loss 0.91",
            "hang",
            ("pid 41 python: 2 threads, is frozen by its control group, frozen by cgroup /sys/fs/cgroup/freezer/job",),
        ),
        Case(
            "step 40 loss 0.91\n[1]+  Stopped                 python train.py",
            "hang",
        ),
    ),
    near_misses=(
        Case("Early stopping: Stopped at epoch 12", "0"),
        Case("", "hang", ("verdict deadlock: process 41 (python) waits for a lock that nobody can release",)),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
