"""What the parts of a self-test share: their folder, their children, and the value each part returns."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.machine.trials import Children

PartState = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What one part of the self-test found."""

    name: str
    state: PartState
    summary: str  # one line for a person
    facts: Mapping[str, object] = field(default_factory=dict)  # the figures behind it
    seconds: float = 0.0


@dataclass(slots=True)
class Workplace:
    """A temporary folder, and the processes started for it."""

    folder: Path
    children: Children
    deadline: float  # on the monotonic clock: when the whole self-test must be done
    facts: dict[str, object] = field(default_factory=dict)  # what later parts need of earlier ones

    def seconds_left(self, most: float) -> float:
        """This many seconds, or what is left of the whole."""
        return max(0.0, min(most, self.deadline - time.monotonic()))
