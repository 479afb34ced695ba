"""A pool keeps restarting workers that die immediately.

What you see: one core busy, no progress, the same error many times or none at all; `ps` keeps showing new process ids.
Why: a pool replaces a worker that died. If every worker dies at startup (a script without its main guard, a missing
library, a broken import), that never ends.
What we do: count the children's exit codes, and restart without worker processes.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves

HAZARD = Hazard(
    slug="worker-crash-loop",
    title="a pool keeps restarting workers that die immediately",
    kind="hang",
    signs=(proves("sample", r"^verdict crash loop: "),),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("start worker processes with fork", change={"start_method": "fork"}, cost="locks are inherited"),
        Remedy("put the script's code under the main guard", command="if __name__ == '__main__': main()"),
    ),
    sources=("kwuking/TimeMixer#21", "AgileRL/AgileRL#286"),
    matches=(Case("", "hang", ("verdict crash loop: 14 of its children ended in failure within 5 s, exit code 1",)),),
    near_misses=(
        Case("", "hang", ("verdict moving: works (1.0 processors)",)),
        Case(
            "RuntimeError: \n        An attempt has been made to start a new process before the\n"
            "        current process has finished its bootstrapping phase.",
            "hang",
            ("verdict crash loop: 14 of its children ended in failure within 5 s, exit code 1",),
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
