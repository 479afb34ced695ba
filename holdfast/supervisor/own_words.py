"""Lets the advice of hazards, which speaks of `python train.py`, speak of the command that was run."""

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.evidence import Diagnosis

_EXAMPLE = re.compile(r"(?P<whole>python train\.py)|(?<![\w./-])train\.py\b")
_TAKES_A_VALUE = re.compile(r"-m|--[^=]+")


def in_own_words(diagnosis: Diagnosis, command: Sequence[str]) -> Diagnosis:
    """The same diagnosis, with remedies for this command; our own engine is nothing that a person would type."""
    if not command or "holdfast.engine" in command:
        return diagnosis
    remedies = (replace(remedy, command=_spoken(remedy.command, command)) for remedy in diagnosis.remedies)
    return replace(diagnosis, remedies=tuple(remedies))


def _spoken(advice: str, command: Sequence[str]) -> str:
    whole, script = shlex.join(command), _script(command)
    if advice.startswith("grep ") and not script:
        return ""  # a file that is not there cannot be read; the remedy's title stands alone

    def own(found: re.Match[str]) -> str:
        words = whole if found["whole"] else script
        return found[0] if not words or ("'" in words and "'" in advice) else words  # no quotes inside of quotes

    return _EXAMPLE.sub(own, advice)


def _script(command: Sequence[str]) -> str:
    """The first word that names a Python file and is no module, no value of an option and no line for a shell."""
    words = [word for before, word in itertools.pairwise(("", *command)) if not _TAKES_A_VALUE.fullmatch(before)]
    return next((shlex.quote(word) for word in words if word.endswith(".py") and " " not in word), "")
