"""Counts steps for a fault script the way the engine does."""

import os
from pathlib import Path

from holdfast.core.heartbeat import BeatWriter

_beat = BeatWriter(Path(os.environ["HOLDFAST_ATTEMPT"]) / "beat")


def enter(phase: str, step: int = 0) -> None:
    _beat.enter(phase, step, 100)


def count_to(last: int, seconds: float = 0.05) -> None:
    """Take a few steps of real work."""
    import time

    for step in range(last):
        enter("step", step + 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
