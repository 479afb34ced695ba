"""A package or a program does not support this version of Python.

What you see: "Could not find a version that satisfies the requirement torch==1.8.1 (from versions: ...)", "requires a
different Python", a SyntaxError inside an installed package, or "unsupported operand type(s) for |: 'type' and
'NoneType'".
Why: wheels exist only for some Python versions and processors, so pip sees none of the wanted release. A package that
was installed regardless uses syntax or names that this Python does not have.
What we do: name the package. A new environment with a Python that it supports is the fix.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, seen, suggests

_OFFLINE = seen(
    "log",
    r"(?i)retrying \(Retry|connection (?:broken|refused|timed out|error)|name resolution|ProxyError|SSLError|ReadTimeout",
)


def _syntax_in_a_package(evidence: Evidence) -> Passage | None:
    """A SyntaxError whose file is part of an installed package."""
    for error in evidence.errors:
        if error.text.startswith(("SyntaxError: invalid syntax", "SyntaxError: expected", "SyntaxError: f-string")):
            above = [one.text for one in evidence.log if error.line - 5 <= one.line < error.line]
            if any(re.search(r'File "[^"]*(?:site|dist)-packages[^"]*", line \d+\s*$', text) for text in above):
                return error
    return None


HAZARD = Hazard(
    slug="no-wheel-for-python",
    title="a package or program does not support this version of Python",
    kind="error",
    signs=(
        proves(
            "log",
            r"^(?!.*(?:tokenizers|faiss-gpu))[^\n]*(?:Could not find a version that satisfies the requirement|No matching distribution found for) \w",
            unless=(_OFFLINE,),
        ),
        proves(
            "log",
            r"requires a different Python(?: version)?:|Requires-Python [<>=!~]|(?:requires|needs) Python ['\"]?(?:[<>=]+ ?)?3\.\d+[^\n]{0,40}(?:but|found|you have|is running|current)",
        ),
        judged("proves", _syntax_in_a_package),
        suggests(
            "error", r"unsupported operand type\(s\) for \|: '(?:type|_GenericAlias|ABCMeta|NoneType|EnumMeta)' and '"
        ),
        suggests(
            "error",
            r"'(?:type|ABCMeta)' object is not subscriptable|No module named '(?:tomllib|zoneinfo|graphlib|dataclasses)'",
        ),
        suggests("error", r"cannot import name '\w+' from '(?:typing|enum|types|functools|contextlib|itertools)'"),
        suggests(
            "log",
            r"Python 3\.\d+ (?:is )?(?:not supported|no longer supported|or (?:later|newer|higher) is required)|only supports Python 3",
        ),
    ),
    remedies=(
        Remedy(
            "create an environment with a Python that the package supports",
            command="conda create -n train python=3.11   # or: uv venv --python 3.11",
            cost="a new environment",
        ),
        Remedy(
            "install a release of the package that supports this Python", command="python -m pip index versions PACKAGE"
        ),
        Remedy(
            "on Windows: use a 64-bit Python", command="python -c 'import struct; print(8 * struct.calcsize(\"P\"))'"
        ),
    ),
    sources=(
        "jhj0517/Whisper-WebUI#71",
        "YassineYousfi/comma10k-baseline#13",
        "huggingface/trl#4208",
        "chrisrude/oobabot#20",
    ),
    over=("version-api-rename", "module-missing"),
    matches=(
        "ERROR: Could not find a version that satisfies the requirement torch==1.12.1 (from versions: 2.2.0, 2.3.0, 2.4.0)\nERROR: No matching distribution found for torch==1.12.1",
        "ERROR: Package 'trl' requires a different Python: 3.8.18 not in '>=3.10'",
        '  File "/venv/lib/python3.9/site-packages/somepackage/core.py", line 88\n    match kind:\n          ^\nSyntaxError: invalid syntax',
        "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
        "TypeError: 'type' object is not subscriptable",
        "ImportError: cannot import name 'Self' from 'typing' (/usr/lib/python3.10/typing.py)",
        "Error: Python 3.13 is not supported yet; use 3.12",
    ),
    near_misses=(
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError': /simple/torch/\nERROR: Could not find a version that satisfies the requirement torch (from versions: none)",
        '  File "/home/jo/train.py", line 3\n    print "start"\n          ^\nSyntaxError: Missing parentheses in call to \'print\'. Did you mean print(...)?',
        "TypeError: 'int' object is not subscriptable",
        "ERROR: No matching distribution found for tokenizers==0.10.3",
    ),
)
