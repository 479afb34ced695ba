"""A process of the run was paused and never continued.

What you see: no error and no progress; `ps` shows the state T, or D or S in a frozen container; the shell may say
"Stopped" or "suspended (tty output)".
Why: SIGSTOP or Ctrl-Z, a program that wrote to a terminal from the background, `docker pause`, a container or session
manager that froze the control group, or a debugger attached to the process.
What we do: kill the process and restart from the last checkpoint. If a frozen control group prevents the kill, say so.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.observations import ProcessView, RankVerdict, StuckProcess, TreeVerdict, Verdict
from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, has_verdict, judged, observed, proves, suggests


def stopped_in_table(evidence: Evidence) -> Passage | None:
    """A Python process in the state T, in a table pasted from a run that hangs."""
    row = next((row for row in evidence.processes if row.state[0] in "Tt" and "python" in row.command), None)
    return Passage("log", row.line, f"pid {row.pid} is in state {row.state}: {row.command}") if row else None


HAZARD = Hazard(
    slug="process-stopped",
    title="a process of the run was stopped or frozen externally",
    kind="hang",
    signs=(
        proves(observed(ProcessView, lambda one: bool(one.frozen_cgroup))),
        proves(has_verdict(Verdict.STOPPED)),
        suggests(observed(ProcessView, lambda one: one.tracer_pid != 0)),
        judged("suggests", stopped_in_table),
        suggests(
            "log",
            r"^(?:zsh: |\[\d+\]\s+[+-]?\s*)?suspended \(tty (?:output|input)\)|^\[\d+\][+-]?\s+Stopped\b",
            also=(HUNG,),
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
        "jo          4211  0.0 12.1 9123456 812345 pts/3  Tl   Feb02  14:07 python train.py",
        Case("step 40 loss 0.91", "hang", (TreeVerdict(verdict=Verdict.STOPPED, pids=(41,)),)),
        Case(
            "step 40 loss 0.91",
            "hang",
            (ProcessView(pid=41, command="python", threads=2, frozen_cgroup="/sys/fs/cgroup/freezer/job"),),
        ),
        Case(
            "step 40 loss 0.91\n[1]+  Stopped                 python train.py",
            "hang",
        ),
        Case("", "hang", (ProcessView(pid=91, command="python", tracer_pid=12),)),
    ),
    near_misses=(
        Case("Early stopping: Stopped at epoch 12", "0"),
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(pid=41, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=41, command="python")),
                ),
            ),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
