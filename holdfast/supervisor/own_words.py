"""Lets the advice of hazards, which speaks of `python train.py`, speak of the command that was run."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.evidence import Diagnosis

_EXAMPLE = re.compile(r"(?P<whole>python train\.py)|(?<![\w./-])train\.py\b")


def in_own_words(diagnosis: Diagnosis, command: Sequence[str]) -> Diagnosis:
    """The same diagnosis, with remedies for this command; our own engine is nothing that a person would type."""
    if not command or "holdfast.engine" in command:
        return diagnosis
    remedies = (replace(remedy, command=_spoken(remedy.command, command)) for remedy in diagnosis.remedies)
    return replace(diagnosis, remedies=tuple(remedies))


def _spoken(advice: str, command: Sequence[str]) -> str:
    whole, script = shlex.join(command), next((word for word in command if word.endswith(".py")), "")
    if "'" in whole and "'" in advice:  # quotes inside of quotes
        return advice
    return _EXAMPLE.sub(lambda found: whole if found["whole"] else shlex.quote(script) if script else found[0], advice)
