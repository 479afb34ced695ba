"""How long the attempts of a run live, as its folder tells."""

import math
import statistics
from pathlib import Path

from holdfast.core.events import read_events, read_last_events
from holdfast.core.runfolder import EVENTS, attempt_folders


def mean_life_seconds(run: Path) -> float:
    """What the attempts before this one lived in the mean; infinite for the first."""
    ended = attempt_folders(run)[:-1]
    return statistics.fmean(map(_life_seconds, ended)) if ended else math.inf


def _life_seconds(attempt: Path) -> float:
    first = next(read_events(attempt / EVENTS), None)
    last = read_last_events(attempt / EVENTS)
    return max(0.0, float(str(last[-1]["time"])) - float(str(first["time"]))) if first and last else 0.0
