"""The clocks that show whether the machine was asleep or the supervisor itself was held up."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of all clocks."""

    monotonic_seconds: float  # stands still while the machine sleeps
    boot_seconds: float  # goes on; where there is no such clock, the time of day


def read_clocks() -> Clocks:
    """Read them now."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return Clocks(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
    return Clocks(time.monotonic(), time.time())


def slept_seconds(before: Clocks, after: Clocks) -> float:
    """How long the machine slept between two readings; small differences of the clocks are not sleep."""
    slept = (after.boot_seconds - before.boot_seconds) - (after.monotonic_seconds - before.monotonic_seconds)
    return slept if slept > 1.0 else 0.0
