"""The last part of a proof: the run's own first steps, then a kill without warning.

The checkpoints stay: the first attempt goes on from them and must repeat, bit for bit, the steps after the last save.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.old_events import NewEvents, read_events
from holdfast.core.runfolder import EVENTS, SAMPLES
from holdfast.supervisor.ending import send
from holdfast.supervisor.members import find_members, read_root

MOST_STEPS, FEWEST_STEPS = 100, 8
_REPEATED_STEPS = 2
_LOOK_SECONDS = 0.05


def steps_wanted(steps: int) -> int:
    """How many steps are done before the kill."""
    return max(FEWEST_STEPS, min(MOST_STEPS, int(0.02 * steps)))


def kill_after_steps(folder: Path, wanted: int, run_child: Callable[[], str]) -> str:
    """Run a child and kill it after so many steps; say how it ended."""
    ended = threading.Event()
    killer = threading.Thread(target=_kill_after, args=(folder, wanted, ended), daemon=True)
    killer.start()
    try:
        return run_child()
    finally:
        ended.set()


def describe_first_steps(folder: Path) -> dict[str, object]:
    """What the killed process had done and saved."""
    events = list(read_events(folder / EVENTS))
    steps = [event for event in events if event["event"] == "step"]
    saved = [int(str(event["step"])) for event in events if event["event"] == "saved"]
    if not steps or not saved:
        return {"state": "failed"}
    return {"state": "killed", "steps": len(steps), "saved_step": max(saved), "peak_bytes": peak_of(folder)}


def peak_of(folder: Path) -> int | None:
    """The most memory that any child below a folder was seen to hold."""
    most = 0
    for file in folder.rglob(SAMPLES):
        for event in read_events(file):
            found = event.get("resident_bytes")
            most = max(most, found if isinstance(found, int) else 0)
    return most or None


class Progress:
    """How far the first steps are, from the events as they come."""

    def __init__(self, wanted: int):
        self._wanted, self._done, self._saved = wanted, 0, -1

    def take(self, event: Mapping[str, Any]) -> None:
        """Hear one event."""
        if event["event"] == "step":
            self._done = int(event["step"]) + 1
        elif event["event"] == "saved":
            self._saved = int(event["step"])

    @property
    def is_enough(self) -> bool:
        """Whether enough steps are done and some of them are not saved; one is enough where each is saved."""
        unsaved = _REPEATED_STEPS if self._done < 2 * self._wanted else 1
        return self._saved >= 0 and self._done >= max(self._wanted, self._saved + unsaved)


def _kill_after(folder: Path, wanted: int, ended: threading.Event) -> None:
    news, progress = NewEvents(folder / EVENTS), Progress(wanted)
    while not ended.wait(_LOOK_SECONDS):
        for event in news.read():
            progress.take(event)
            if progress.is_enough:  # right after a step: a save that follows it would leave nothing to repeat
                _kill(folder)
                return


def _kill(folder: Path) -> None:
    """Kill every process at once, those that compute before the one that looks after them."""
    for member in reversed(find_members(folder, read_root(folder))):
        send(member.identity, signal.SIGKILL)
