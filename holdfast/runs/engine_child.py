"""How our own engine is started: its environment, its settings, and the spare that may become its next attempt.

Several processes are a torchrun job: `python -m torch.distributed.run ... -m holdfast.engine ATTEMPT`. The processes
meet on this machine alone, at a port that is free; nothing is started again by torchrun, which the supervisor does.
"""

import os
import re
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
_MONITOR_SECONDS = "0.1"  # how often torchrun looks whether a process has ended
_OF_A_JOB = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+|MASTER_(?:ADDR|PORT)|TORCHELASTIC_\w+"
)
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_LEAST_FREE_BYTES, _LEAST_FREE_SHARE = 2 << 30, 0.25  # a spare holds about 0.3 GB

OnEvent = Callable[[str, Mapping[str, object]], None]


class EngineChildren:
    """Starts the engine's processes of one run, from a spare where one waits. Ends the spare when it is left."""

    def __init__(self, run: Path, *, processes: int = 1):
        self._run, self._is_alone = run, processes == 1
        self._spare = Spare("holdfast.engine.spare", (ENGINE, TRIAL), run, _environment({}))
        self._stepping_since: float | None = None

    def __enter__(self) -> "EngineChildren":
        return self

    def __exit__(self, *_: object) -> None:
        self._spare.close()

    def launch(self, attempt: Path, settings: Mapping[str, object], changes: Changes, module: str = ENGINE) -> Launch:
        """Write the settings of an attempt, and say how it is started."""
        changed = {name: value for name, value in changes.items() if not name.isupper()}
        told = {**settings, **changed}
        count = int(str(told.get("processes") or 1))
        write_artifact(attempt, SETTINGS, told)
        self._stepping_since, self._is_alone = None, count == 1
        # Only what was measured: on a card or on Apple's GPU the device costs more than the imports.
        takes_spare = count == 1 and told.get("device", "cpu") == "cpu"
        if not takes_spare:
            self._spare.close()
        return Launch(
            (*torchrun_command(count), "-m", module, str(attempt)),
            self._run,
            {**_environment(changes), **(_together(told, changes) if count > 1 else {})},
            attempt,
            spare=self._spare if takes_spare else None,
            is_of_ranks=count > 1,
        )

    def warm_up(self) -> None:
        """Have a spare for the next process, where there is memory for it and one process is what comes next."""
        if sys.platform == "linux" and self._is_alone and _has_room():
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


def torchrun_command(processes: int) -> tuple[str, ...]:
    """What stands before `-m MODULE`: torchrun for several processes, Python alone for one."""
    if processes == 1:
        return (sys.executable,)
    here = "127.0.0.1"  # a host's own name may lead anywhere, or nowhere
    counts = ("--nnodes", "1", "--nproc-per-node", str(processes))
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{here}:0", "--local-addr", here)
    manner = ("--max-restarts", "0", "--monitor-interval", _MONITOR_SECONDS)
    return (sys.executable, "-m", "torch.distributed.run", *counts, *meeting, *manner)


def _together(told: Mapping[str, object], changes: Changes) -> dict[str, str]:
    """What the environment says to several processes of one machine."""
    found = {"OMP_NUM_THREADS": str(told.get("threads") or 1)}
    if sys.platform in _LOOPBACK and "GLOO_SOCKET_IFNAME" not in os.environ:
        found["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
    return {name: value for name, value in found.items() if name not in changes}


def _environment(changes: Changes) -> dict[str, str]:
    variables = {name: str(value) for name, value in changes.items() if name.isupper()}
    # Started inside of a distributed job we are no part of it, and neither is what we start.
    given = {name: value for name, value in os.environ.items() if not _OF_A_JOB.fullmatch(name)}
    return {**given, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", **variables}


def _has_room() -> bool:
    free_bytes = probe_memory_free_bytes().value
    return free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * probe_memory_bytes().value)
