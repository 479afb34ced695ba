"""Starts the engine with several real ranks, as `holdfast train --processes N` does."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

from safetensors.torch import load_file
from torch import Tensor

from holdfast.core.event_log import read_events
from holdfast.core.events import Event, RankStarted, StepDone
from holdfast.core.runfolder import BEATS, EVENTS, METRICS, OUTPUT, checkpoints_folder, model_folder
from holdfast.runs.engine_child import torchrun_command
from tests.lab.test_engine_resume import wait_for_step

E = TypeVar("E", bound=Event)
LIMIT_SECONDS = 600
_MANY = str(Path(__file__).with_name("scripts") / "many_attempts.py")


def start(attempt: Path, processes: int) -> subprocess.Popen:
    """Start one attempt; its output goes to its folder."""
    return _start((*torchrun_command(processes), "-m", "holdfast.engine", str(attempt)), attempt / OUTPUT)


def finish(attempt: Path, processes: int) -> None:
    """Train one attempt to its end."""
    assert start(attempt, processes).wait(LIMIT_SECONDS) == 0, (attempt / OUTPUT).read_text()


def finish_all(attempts: list[Path], processes: int) -> None:
    """Train several runs one after the other in the same processes: most of a tiny run is its imports."""
    job = _start((*torchrun_command(processes), _MANY, *map(str, attempts)), attempts[0] / OUTPUT)
    assert job.wait(LIMIT_SECONDS) == 0, (attempts[0] / OUTPUT).read_text()


def events(attempt: Path, kind: type[E]) -> list[E]:
    """The events of one kind that an attempt wrote."""
    return [event for event in read_events(attempt / EVENTS) if isinstance(event, kind)]


def losses(*attempts: Path) -> list[float]:
    """The loss of every step, of the last attempt that did it."""
    found = {event.step: event.loss for attempt in attempts for event in events(attempt, StepDone)}
    return [found[step] for step in sorted(found)]


def weights(run: Path) -> dict[str, Tensor]:
    """All weights of the finished model."""
    files = sorted(model_folder(run).rglob("*.safetensors"))
    assert files
    return {f"{file.parent.name}/{name}": weight for file in files for name, weight in load_file(file).items()}


def metrics(run: Path) -> dict[str, float]:
    """What was measured of the finished model."""
    return json.loads((run / METRICS).read_text())["validation"]


def saved_steps(run: Path) -> list[str]:
    """The checkpoints of a run, the newest last; nothing else may be there."""
    return sorted(path.name for path in checkpoints_folder(run).iterdir() if path.name != "best.json")


def ranks_of(attempt: Path, step: int) -> dict[int, int]:
    """Wait until a step is done; give the pid of each rank."""
    wait_for_step(attempt, step)
    found = {event.rank: event.pid for event in events(attempt, RankStarted)}
    assert {path.name for path in (attempt / BEATS).iterdir()} == {str(pid) for pid in found.values()}
    return found


def wait_until_gone(pids: list[int]) -> None:
    """No rank may outlive its job."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _start(command: tuple[str, ...], output: Path) -> subprocess.Popen:
    own = {"OMP_NUM_THREADS": "1"} | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    with output.open("wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **own}
        )
