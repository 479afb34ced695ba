"""How long the attempts of a run live before work is lost, as its folder tells."""

import math
from pathlib import Path

from holdfast.core.events import read_events, read_last_events
from holdfast.core.runfolder import EVENTS, attempt_folders


def mean_life_seconds(run: Path) -> float:
    """What the attempts before this one lived for each that died; one that saved as its last act lost nothing."""
    lives = [_life(attempt) for attempt in attempt_folders(run)[:-1]]
    died = sum(has_died for _, has_died in lives)
    return sum(seconds for seconds, _ in lives) / died if died else math.inf


def _life(attempt: Path) -> tuple[float, bool]:
    first = next(read_events(attempt / EVENTS), None)
    last = read_last_events(attempt / EVENTS)
    if not first or not last:
        return 0.0, True
    return max(0.0, float(str(last[-1]["time"])) - float(str(first["time"]))), last[-1]["event"] != "stopped"
