"""How long the attempts of a run live, as its folder tells."""

import math
from pathlib import Path

from holdfast.core.events import read_events
from holdfast.core.runfolder import EVENTS, attempt_folders


def mean_life_seconds(run: Path, now: float) -> float:
    """The time since the first attempt began, divided by the attempts that have ended; infinite for the first."""
    attempts = attempt_folders(run)
    first = next((event for attempt in attempts for event in read_events(attempt / EVENTS)), None)
    if first is None or len(attempts) < 2:
        return math.inf
    return max(0.0, now - float(str(first["time"]))) / (len(attempts) - 1)
