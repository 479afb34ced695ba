"""How long the attempts of a run train before one dies, as its folder tells."""

import math
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.old_events import read_events, read_last_events
from holdfast.core.runfolder import EVENTS, attempt_folders


@dataclass(frozen=True, slots=True)
class Lives:
    """What became of the attempts before this one."""

    seconds: float  # that they trained, together
    deaths: int  # one that saved as its last act, or had not begun to train, has lost nothing and did not die

    def mean_seconds(self, now_seconds: float) -> float:
        """What the run trains for each death, with what this attempt has trained by now; infinite while none died."""
        return (self.seconds + now_seconds) / self.deaths if self.deaths else math.inf


def lives_of(run: Path) -> Lives:
    """Read the lives of the attempts before the newest."""
    lives = [_life(attempt) for attempt in attempt_folders(run)[:-1]]
    return Lives(sum(seconds for seconds, _ in lives), sum(has_died for _, has_died in lives))


def _life(attempt: Path) -> tuple[float, bool]:
    begun = next((event for event in read_events(attempt / EVENTS) if event["event"] == "training"), None)
    last = read_last_events(attempt / EVENTS)
    if not begun or not last:
        return 0.0, False
    return max(0.0, float(str(last[-1]["time"])) - float(str(begun["time"]))), last[-1]["event"] != "stopped"
