"""Runs scripts under the preload alone, as `holdfast run` would start them, and looks at what they leave."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import holdfast
from holdfast.core.event_log import read_events
from holdfast.core.events import Event
from holdfast.core.heartbeat import Beat, read_beat
from holdfast.core.runfolder import EVENTS, SETTINGS, attempt_folder

E = TypeVar("E", bound=Event)
PRELOAD = Path(holdfast.__file__).parent / "preload"
SCRIPTS = Path(__file__).parent / "scripts"
PYTHON = os.environ.get("HOLDFAST_LAB_PYTHON", sys.executable)  # one with more libraries, to run their scripts too


def has_library(*names: str) -> bool:
    """Say whether the scripts' interpreter has these libraries, without loading them."""
    code = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {names!r})))"
    return not subprocess.run([PYTHON, "-c", code], capture_output=True, check=False).returncode


class Preloaded:
    """One attempt of a script."""

    def __init__(self, run: Path, number: int, *command: str | Path, **settings: object):
        self.folder = attempt_folder(run, number)
        self.folder.mkdir(parents=True)
        (self.folder / SETTINGS).write_text(json.dumps(settings))
        self.output = self.folder / "output.log"
        words = [str(word) for word in command]
        if words[0].endswith(".py") or words[0].startswith("-"):
            words.insert(0, PYTHON)
        known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {
            "PYTHONPATH": str(PRELOAD),
            "HOLDFAST_ATTEMPT": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=known | own, cwd=run
            )

    def finish(self, code: int = 0) -> "Preloaded":
        """Wait for the script's end."""
        got = self.process.wait(timeout=300)
        assert got == code, self.output.read_text(errors="replace")[-3000:]
        return self

    def wait_until(self, told: Callable[["Preloaded"], bool]) -> "Preloaded":
        """Wait for something to be seen of the script while it runs."""
        deadline = time.monotonic() + 300
        while not told(self):
            assert self.process.poll() is None, self.output.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.002)
        return self

    def kill(self, how: signal.Signals = signal.SIGKILL) -> "Preloaded":
        """End the script from outside."""
        self.process.send_signal(how)
        self.process.wait(timeout=60)
        return self

    def events(self, kind: type[E]) -> list[E]:
        """Every event of one kind."""
        return [event for event in read_events(self.folder / EVENTS) if isinstance(event, kind)]

    def beats(self) -> list[Beat]:
        """The last beat of every process that beat."""
        return [beat for path in (self.folder / "beats").glob("*") if (beat := read_beat(path))]

    def furthest(self) -> Beat | None:
        """The beat of the process that came furthest."""
        return max(self.beats(), key=lambda beat: beat.step, default=None)

    def step(self) -> int:
        """The step reached."""
        beat = self.furthest()
        return beat.step if beat else 0


def at_step(step: int) -> Callable[[Preloaded], bool]:
    """For `wait_until`."""
    return lambda attempt: attempt.step() >= step
