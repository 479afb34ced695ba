"""How our own engine is started: its environment, its settings, and the spare that may become its next attempt."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import SETTINGS
from holdfast.machine.memory import probe_memory_bytes, probe_memory_free_bytes
from holdfast.planning.ladder import Changes
from holdfast.supervisor.child import Launch
from holdfast.supervisor.spare import Spare

ENGINE, TRIAL = "holdfast.engine", "holdfast.engine.trial"
_TRAINED_SECONDS = 20.0  # of steps, after which a spare is worth its imports
_LEAST_FREE_BYTES, _LEAST_FREE_SHARE = 2 << 30, 0.25  # a spare holds about 0.3 GB

OnEvent = Callable[[str, Mapping[str, object]], None]


class EngineChildren:
    """Starts the engine's processes of one run, from a spare where one waits. Ends the spare when it is left."""

    def __init__(self, run: Path):
        self._run = run
        self._spare = Spare("holdfast.engine.spare", (ENGINE, TRIAL), run, _environment({}))
        self._stepping_since: float | None = None

    def __enter__(self) -> "EngineChildren":
        return self

    def __exit__(self, *_: object) -> None:
        self._spare.close()

    def launch(self, attempt: Path, settings: Mapping[str, object], changes: Changes, module: str = ENGINE) -> Launch:
        """Write the settings of an attempt, and say how it is started."""
        changed = {name: value for name, value in changes.items() if not name.isupper()}
        write_artifact(attempt, SETTINGS, {**settings, **changed})
        self._stepping_since = None
        # Only what was measured: on a card or on Apple's GPU the device costs more than the imports.
        is_on_cpu = changed.get("device", settings.get("device", "cpu")) == "cpu"
        if not is_on_cpu:
            self._spare.close()
        return Launch(
            (sys.executable, "-m", module, str(attempt)),
            self._run,
            _environment(changes),
            attempt,
            spare=self._spare if is_on_cpu else None,
        )

    def warm_up(self) -> None:
        """Have a spare for the next process, where there is memory for it."""
        if sys.platform == "linux" and _has_room():
            self._spare.make()

    def listening(self, on_event: OnEvent) -> OnEvent:
        """Pass the events of a run on; have a spare once it has trained for a while."""

        def hear(event: str, details: Mapping[str, object]) -> None:
            if event == "progress" and details.get("phase") == "step":
                now = time.monotonic()
                self._stepping_since = self._stepping_since or now
                if now - self._stepping_since >= _TRAINED_SECONDS:
                    self._stepping_since = float("inf")  # once an attempt
                    self.warm_up()
            on_event(event, details)

        return hear


def _environment(changes: Changes) -> dict[str, str]:
    variables = {name: str(value) for name, value in changes.items() if name.isupper()}
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", **variables}


def _has_room() -> bool:
    free_bytes = probe_memory_free_bytes().value
    return free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * probe_memory_bytes().value)
