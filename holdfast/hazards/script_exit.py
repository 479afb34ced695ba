"""The program exited on purpose with an exit code, with or without a message.

What you see: a message from the program, such as "no rows in data.csv", or nothing, and exit code 1; no traceback.
Why: `sys.exit("...")`, `raise SystemExit("...")` or `sys.exit(1)` is where the program decides that it cannot continue.
A retry would reach the same line.
What we do: stop, show the program's message, and return its exit code. Retry only if the program got further than
before.
"""

from holdfast.core.evidence import Evidence, Seen
from holdfast.core.observations import ExitStatus, ProcessExit, ProgramExit
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged


def _left_without_an_error(evidence: Evidence) -> Seen | None:
    """The program's last message, unless it or another process had failed before."""
    found = next(evidence.observed(ProgramExit), None)
    if found is None or any(evidence.observed(ProcessExit)):  # it may only pass on the failure of another process
        return None
    errors = (" ".join(error.text.split()) for error in evidence.errors)
    last_words = found.message or found.last_line
    is_said = (error in last_words or _is_of_closing(error, found) for error in errors)
    return found if all(is_said) else None


def _is_of_closing(error: str, found: ProgramExit) -> bool:
    return bool(found.crashed_after) and error.startswith("Fatal Python error: ")


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
            needs_script=True,
        ),
    ),
    sources=("https://docs.python.org/3/library/sys.html#sys.exit",),
    matches=(
        Case("no rows in data.csv", "1", (ProgramExit(message="no rows in data.csv"),)),
        Case(
            "no rows in data.csv\nFatal Python error: Aborted",
            "SIGABRT",
            (ProgramExit(message="no rows in data.csv", crashed_after="exit_handler"),),
        ),
        Case("fit.py: error: --lr is missing", "2", (ProgramExit(last_line="fit.py: error: --lr is missing"),)),
        Case("", "1", (ProgramExit(),)),
    ),
    near_misses=(
        Case("KeyError: 'lr'\ngiving up", "1", (ProgramExit(message="giving up"),)),
        Case("", "1", (ProcessExit(pid=32, name="python", rank=1, status=ExitStatus(code=3)), ProgramExit())),
        Case(
            "giving up",
            "1",
            (ProcessExit(pid=32, name="python", rank=1, status=ExitStatus(code=3)), ProgramExit(message="giving up")),
        ),
        Case(
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "1",
            (ProgramExit(message="RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"),),
        ),
        Case("no rows in data.csv", "1"),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
