"""The program exited on purpose with an exit code, with or without a message.

What you see: a message from the program, such as "no rows in data.csv", or nothing, and exit code 1; no traceback.
Why: `sys.exit("...")`, `raise SystemExit("...")` or `sys.exit(1)` is where the program decides that it cannot continue.
A retry would reach the same line.
What we do: stop, show the program's message, and return its exit code. Retry only if the program got further than
before.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged

_OTHERS = r"ended by (?:signal|code)"  # it may only pass on what became of another process


def _left_without_an_error(evidence: Evidence) -> Passage | None:
    """The program's last message, unless it or another process had failed before."""
    found = evidence.samples.first(r"^its (?:message|last line): |^it left without a word")
    if found is None or evidence.samples.first(_OTHERS):
        return None
    errors = (re.sub(r"\s+", " ", error.text).strip() for error in evidence.errors)
    is_said = (error in found.text or _is_of_closing(error, found.text) for error in errors)
    return found if all(is_said) else None


def _is_of_closing(error: str, words: str) -> bool:
    return words.endswith(" crashed") and error.startswith("Fatal Python error: ")


HAZARD = Hazard(
    slug="script-exit",
    title="the program exited on purpose",
    kind="error",
    signs=(judged("proves", _left_without_an_error),),
    is_last_resort=True,
    remedies=(
        Remedy(
            "follow its message, or find where it exits: after its last output, or at a sys.exit",
            command="grep -n -e sys.exit -e SystemExit -e argparse -e click train.py",
        ),
    ),
    sources=("https://docs.python.org/3/library/sys.html#sys.exit",),
    matches=(
        Case("no rows in data.csv", "1", ("its message: no rows in data.csv",)),
        Case(
            "no rows in data.csv\nFatal Python error: Aborted",
            "SIGABRT",
            ("its message: no rows in data.csv; then one of its exit handlers crashed",),
        ),
        Case("fit.py: error: --lr is missing", "2", ("its last line: fit.py: error: --lr is missing",)),
        Case("", "1", ("it left without a word",)),
    ),
    near_misses=(
        Case("KeyError: 'lr'\ngiving up", "1", ("its message: giving up",)),
        Case("", "1", ("rank 1 (pid 32) ended by code 3", "it left without a word")),
        Case("giving up", "1", ("rank 1 (pid 32) ended by code 3", "its message: giving up")),
        Case(
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "1",
            ("its message: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",),
        ),
        Case("no rows in data.csv", "1"),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
