"""Python started but found no program to run.

What you see: "python: No module named fit", "can't open file 'fit.py'" or "can't find '__main__' module in 'folder'",
at once.
Why: the name is misspelled, the command was started in the wrong folder, the module is installed in a different
environment, or a package has no `__main__.py`.
What we do: stop, show Python's message, and return its exit code.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged

_FOUND_NOTHING = re.compile(
    r"^(?:.*[/\\])?(?:python|pypy)[\w.-]*: "
    r"(?:No module named |can't open file |can't find '__main__' module in |Error while finding module specification for )"
)


def _found_nothing(evidence: Evidence) -> Passage | None:
    """The interpreter's last line before it exits; a shell may have continued after an earlier one."""
    lines = [passage for passage in evidence.log if passage.text.strip()]
    is_left = all(status.code is not None for status in evidence.exits)
    return lines[-1] if is_left and lines and _FOUND_NOTHING.search(lines[-1].text) else None


HAZARD = Hazard(
    slug="program-missing",
    title="the interpreter found no program with that name",
    kind="error",
    signs=(judged("proves", _found_nothing),),
    remedies=(
        Remedy(
            "check in which folder and with which Python the command starts",
            command="""pwd; python -c 'import sys; print(sys.executable, *sys.path, sep="\\n")'""",
        ),
    ),
    sources=("https://docs.python.org/3/using/cmdline.html#cmdoption-m",),
    matches=(
        Case("/usr/bin/python3: No module named fit", "1"),
        Case("python: can't open file '/home/ann/fit.py': [Errno 2] No such file or directory", "2"),
        Case("/home/ann/venv/bin/python: can't find '__main__' module in '/home/ann/fit'", "1"),
    ),
    near_misses=(
        "ModuleNotFoundError: No module named 'fit'",
        Case("python: No module named pip\nstep 1", "1"),
        Case("python: No module named fit", "SIGSEGV"),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
