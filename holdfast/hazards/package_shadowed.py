"""A file or folder of the program has the name of the package that it imports.

What you see: "partially initialized module 'datasets' (most likely due to a circular import)", "cannot import name ...
(unknown location)", "'xml' is not a package", or a path in your own folder where a library should be.
Why: Python searches the script's folder first. A `datasets.py` or an empty folder `peft/` there hides the installed
package; a half-removed package leaves such an empty folder behind.
What we do: name the file that was found, which is printed in the error.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, suggests
from holdfast.hazards.tracebacks import LIBRARIES, owner_of

_FOUND_AT = re.compile(
    r"(?:from|module) (?:partially initialized module )?'(?P<name>[\w.]+)'[^\n]*\((?P<path>[/\\A-Za-z][^()]*\.py)\)"
)


def _found_in_own_folder(evidence: Evidence) -> Passage | None:
    """A library's name that was found in the user's own folder."""
    for found, passage in evidence.errors.search(_FOUND_AT.pattern):
        name = found["name"].partition(".")[0]
        path = found["path"].replace("\\", "/")
        is_named_like_it = f"/{name}.py" in path or f"/{name}/__init__.py" in path
        if name in LIBRARIES and is_named_like_it and not owner_of(path) and "/src/" not in path:
            return passage
    return None


HAZARD = Hazard(
    slug="package-shadowed",
    title="a file or folder hides the package that the program imports",
    kind="error",
    signs=(
        proves("error", r"cannot import name '\w+' from '[\w.]+' \(unknown location\)"),
        proves("error", r"No module named '[\w.]+'; '[\w.]+' is not a package"),
        proves("error", r"consider renaming '[^'\n]+' (?:since|if) it has the same name as"),
        judged("proves", _found_in_own_folder),
        suggests(
            "error",
            r"partially initialized module '(?:torch|transformers|datasets|numpy|pandas|random|copy|types|logging|tokenizers|peft|trl|wandb|tqdm)'",
        ),
    ),
    remedies=(
        Remedy(
            "rename your own file or folder, and delete its __pycache__",
            command="python -c 'import PACKAGE; print(PACKAGE.__file__)'",
        ),
        Remedy(
            "install the package again, if it is not your own file",
            command="python -m pip install --force-reinstall --no-deps PACKAGE",
        ),
    ),
    sources=("ZebinYang/SeqUD#3", "mem0ai/mem0#88", "dgilland/fnc#1", "python/cpython#79556"),
    matches=(
        "ImportError: cannot import name 'LoraConfig' from 'peft' (unknown location)",
        "ModuleNotFoundError: No module named 'email.message'; 'email' is not a package",
        "AttributeError: module 'random' has no attribute 'shuffle' (consider renaming '/home/jo/random.py' since it has the same name as the standard library module named 'random' and prevents importing that standard library module)",
        "ImportError: cannot import name 'load_dataset' from 'datasets' (/home/jo/project/datasets.py)",
        "ImportError: cannot import name 'Tensor' from partially initialized module 'torch' (most likely due to a circular import)",
    ),
    near_misses=(
        "ImportError: cannot import name 'AdamW' from 'transformers' (/venv/lib/python3.11/site-packages/transformers/__init__.py)",
        "ImportError: cannot import name 'helper' from 'utils' (/home/jo/project/utils.py)",
        "ImportError: cannot import name 'Model' from partially initialized module 'models' (most likely due to a circular import) (/home/jo/project/models.py)",
    ),
)
