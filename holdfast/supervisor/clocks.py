"""The clocks that show whether the machine slept or the supervisor itself was delayed."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of all clocks."""

    monotonic_seconds: float  # does not advance while the machine sleeps
    boot_seconds: float  # advances then too; the time of day where there is no such clock


def read_clocks() -> Clocks:
    """Read them now."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return Clocks(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
    return Clocks(time.monotonic(), time.time())


def slept_seconds(before: Clocks, after: Clocks) -> float:
    """How long the machine slept between two readings; small differences of the clocks are not sleep."""
    slept = (after.boot_seconds - before.boot_seconds) - (after.monotonic_seconds - before.monotonic_seconds)
    return slept if slept > 1.0 else 0.0
