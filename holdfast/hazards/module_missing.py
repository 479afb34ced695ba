"""A Python module that the program imports is not installed.

What you see: "ModuleNotFoundError: No module named 'rouge_score'", or a library's "requires the SentencePiece library
but it was not found in your environment".
Why: the package was never installed, was installed into another environment than the one that runs, is an optional
dependency, or its wheel leaves out a folder. The name to install can differ from the name to import (cv2 is
opencv-python).
What we do: name the module; `holdfast doctor` shows which interpreter runs and what it has.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves
from holdfast.hazards.tracebacks import LIBRARIES, exceptions

_MISSING = r"No module named ['\"]?(?P<name>[\w.]+)"


def _imported_module(evidence: Evidence) -> Passage | None:
    """An import that found no module of that name. Below a package that is there, a name may only have moved."""
    for asked, passage in evidence.errors.search(_MISSING):
        top, _, rest = asked["name"].partition(".")
        if "is not a package" in passage.text or (rest and top in LIBRARIES):
            continue
        if top.startswith("_") or top in ("distutils", "imp", "pkg_resources", "asynchat", "asyncore", "cgi"):
            continue  # part of Python itself, in some versions
        if not any(True for _ in exceptions(evidence, "ImportError", "ModuleNotFoundError")) and evidence.ended_well:
            continue
        return passage
    return None


HAZARD = Hazard(
    slug="module-missing",
    title="a Python module that the program imports is not installed",
    kind="error",
    signs=(
        judged("suggests", _imported_module),
        proves("error", r"requires the [\w .-]{2,40} library but it was not found in your environment"),
        proves("error", r"Missing optional dependency '|[Nn]o package metadata was found for (?!bitsandbytes)\w"),
        proves(
            "error",
            r"[Cc]ouldn't instantiate the backend tokenizer from one of|need to have (?:sentencepiece|tiktoken)(?: or \w+)? installed",
        ),
        proves(
            "error",
            r"(?i)\b[\w.-]{2,40}`? (?:is|are) (?:required|needed)[^\n]{0,60}(?:but|is|are)?[^\n]{0,20}\bnot (?:be )?(?:installed|found)",
        ),
        proves(
            "error",
            r"(?i)\bnot installed\b[^\n]{0,120}\bpip3? install\b|\bpip3? install [\w\[\]-]+`? (?:to use|to enable|before)",
        ),
    ),
    remedies=(
        Remedy(
            "install the package into the interpreter that runs the program",
            command="python -m pip install PACKAGE",
            cost="none",
        ),
        Remedy("see which interpreter runs, and what it has", command="holdfast doctor"),
        Remedy(
            "for a folder of the program itself: run from the folder that contains it",
            command="PYTHONPATH=. python train.py",
        ),
    ),
    sources=(
        "foundation-model-stack/fms-hf-tuning#13",
        "huggingface/finetrainers#412",
        "giuvecchio/matfuse#3",
        "mlfoundations/datacomp#79",
    ),
    matches=(
        "Traceback (most recent call last):\n  File \"/srv/app/train.py\", line 3, in <module>\n    import rouge_score\nModuleNotFoundError: No module named 'rouge_score'",
        "ModuleNotFoundError: No module named 'evaluation.metrics'",
        "ImportError: \nLlamaTokenizer requires the SentencePiece library but it was not found in your environment. Check out the instructions on the installation page",
        "ImportError: Missing optional dependency 'openpyxl'.  Use pip or conda to install openpyxl.",
        "ValueError: Couldn't instantiate the backend tokenizer from one of:\n(1) a `tokenizers` library serialization file,\n(2) a slow tokenizer instance to convert",
        "ImportError: tiktoken is required to read a tiktoken file but was not installed",
        "RuntimeError: TensorBoardCallback: tensorboard is not installed. Please run `pip install tensorboard`",
    ),
    near_misses=(
        "ModuleNotFoundError: No module named 'torch._six'",
        "ModuleNotFoundError: No module named 'distutils'",
        "ModuleNotFoundError: No module named 'xml.parsers'; 'xml' is not a package",
        "ModuleNotFoundError: No module named 'accelerate'",
        "ModuleNotFoundError: No module named '_ctypes'",
    ),
)
