"""Starts the engine: its environment, its settings, and the spare process that may become its next attempt.

Several processes are a torchrun job: `python -m torch.distributed.run ... -m holdfast.engine ATTEMPT`. On one machine
they connect at a free port; with several machines each starts its own part, and `runs.rendezvous` says where all of
them connect. torchrun restarts nothing: the supervisor does.
"""

import os
import re
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

from holdfast.core.events import Event, Progressed
from holdfast.core.records import Changes, write_record
from holdfast.core.settings import EngineSettings
from holdfast.machine.resources import probe_memory_bytes, probe_memory_free_bytes
from holdfast.supervisor.child import Launch
from holdfast.supervisor.spare import Spare

ENGINE, TRIAL = "holdfast.engine", "holdfast.engine.trial"
_TRAINED_SECONDS = 20.0  # after this much training, a spare is worth its imports
_MONITOR_SECONDS = "0.1"  # how often torchrun checks whether a process has ended
_MEETING_SECONDS = 300  # for the launchers of several machines, which load torch first
_OF_A_JOB = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+|MASTER_(?:ADDR|PORT)|TORCHELASTIC_\w+"
    r"|PET_\w+"
)
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_SETTINGS = frozenset(field.name for field in fields(EngineSettings))
_LEAST_FREE_BYTES, _LEAST_FREE_SHARE = 2 << 30, 0.25  # a spare holds about 0.3 GB


class EngineChildren:
    """Starts the engine's processes of one run, from a spare process if one is ready. Ends the spare on exit."""

    def __init__(self, run: Path, *, processes: int = 1):
        self._run, self._is_alone = run, processes == 1
        self._spare = Spare("holdfast.engine.spare_process", (ENGINE, TRIAL), run, _environment({}))
        self._stepping_since: float | None = None

    def __enter__(self) -> "EngineChildren":
        return self

    def __exit__(self, *_: object) -> None:
        self._spare.close()

    def launch(
        self, attempt: Path, settings: EngineSettings, changes: Changes, module: str = ENGINE, nodes: int = 1
    ) -> Launch:
        """Write the settings of an attempt and return how it is started; with several machines, this machine's part."""
        changed = replace(settings, **{name: value for name, value in changes.items() if name in _SETTINGS})
        write_record(attempt, changed)
        is_alone = changed.processes * nodes == 1
        self._stepping_since, self._is_alone = None, is_alone
        # Measured: on a GPU the device costs more than the imports, so a spare gains nothing.
        takes_spare = is_alone and changed.device == "cpu"
        if not takes_spare:
            self._spare.close()
        return Launch(
            (*torchrun_command(changed.processes, nodes), "-m", module, str(attempt)),
            self._run,
            {**_environment(changes), **({} if is_alone else _together(changed, changes, nodes))},
            attempt,
            spare=self._spare if takes_spare else None,
            is_of_ranks=not is_alone,
        )

    def warm_up(self) -> None:
        """Prepare a spare for the next process, if there is memory for it and the next attempt has one process."""
        if sys.platform == "linux" and self._is_alone and _has_room():
            self._spare.make()

    def hear(self, event: Event) -> None:
        """Listen to the run: have a spare once it has trained for a while."""
        if isinstance(event, Progressed) and event.phase == "step":
            now = time.monotonic()
            self._stepping_since = self._stepping_since or now
            if now - self._stepping_since >= _TRAINED_SECONDS:
                self._stepping_since = float("inf")  # once per attempt
                self.warm_up()


def torchrun_command(processes: int, nodes: int = 1) -> tuple[str, ...]:
    """The command before `-m MODULE`: torchrun for several processes, Python alone for one."""
    if processes * nodes == 1:
        return (sys.executable,)
    here = "127.0.0.1"  # the host name may resolve to an address that cannot be reached
    counts = ("--nnodes", str(nodes), "--nproc-per-node", str(processes))
    meeting: tuple[str, ...] = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{here}:0", "--local-addr", here)
    if nodes > 1:
        # The leader has the first ranks, which save and report.
        meeting = ("--rdzv-backend", "static", "--rdzv-conf", f"timeout={_MEETING_SECONDS}")
    manner = ("--max-restarts", "0", "--monitor-interval", _MONITOR_SECONDS)
    return (sys.executable, "-m", "torch.distributed.run", *counts, *meeting, *manner)


def _together(settings: EngineSettings, changes: Changes, nodes: int) -> dict[str, str]:
    """Environment variables for several processes."""
    found = {"OMP_NUM_THREADS": str(settings.threads or 1)}
    if nodes == 1 and sys.platform in _LOOPBACK and "GLOO_SOCKET_IFNAME" not in os.environ:
        found["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
    return {name: value for name, value in found.items() if name not in changes}


def _environment(changes: Changes) -> dict[str, str]:
    variables = {name: str(value) for name, value in changes.items() if name.isupper()}
    # If Holdfast itself was started inside a distributed job, neither it nor its children are part of that job.
    given = {name: value for name, value in os.environ.items() if not _OF_A_JOB.fullmatch(name)}
    return {**given, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", **variables}


def _has_room() -> bool:
    free_bytes = probe_memory_free_bytes().value
    return free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * probe_memory_bytes().value)
