"""Starts `holdfast train` on a tiny model and tiny data for lab tests, and reads what it left."""

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.core.event_log import read_events
from holdfast.core.events import Event, StepDone
from holdfast.core.runfolder import EVENTS, attempt_folder
from tests.tiny import tiny_bert

Process = subprocess.Popen[bytes]


def make_world(folder: Path) -> Path:
    """A folder with a tiny model, data, and caches of its own."""
    tiny_bert(folder / "model")
    draws = random.Random(1)
    with (folder / "texts.csv").open("w") as file:
        file.write("text,label\n")
        for _ in range(600):
            words = [draws.randrange(1, 100) for _ in range(draws.randrange(4, 20))]
            file.write(" ".join(f"w{word}" for word in words) + f",kind {words[0] % 3}\n")
    return folder


def start(world: Path, *arguments: str, **variables: str) -> Process:
    """Start a command of ours in that world."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(world / "cache"), "XDG_STATE_HOME": str(world / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=world,
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def train(world: Path, run: Path, *more: str, **variables: str) -> Process:
    """Start a run of 93 steps that saves whenever it can."""
    given = ["train", "texts.csv", "--model", "model", "--out", str(run), "--threads", "1", "--epochs", "3"]
    return start(world, *given, "--batch-size", "16", "--lr", "1e-3", "--save-seconds", "0", *more, **variables)


def finish(process: Process) -> str:
    """Wait for a command to end well; what it said, on one line."""
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said.decode()
    return " ".join(said.decode().split())  # lines are wrapped


def weights(run: Path) -> str:
    """A fingerprint of the finished model."""
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def wait_until(is_true: Callable[[], bool], process: Process) -> None:
    """Wait for something that must come while the command runs."""
    deadline = time.monotonic() + 400
    while not is_true():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


def has_event(path: Path, kind: type[Event], **fields: object) -> bool:
    """Whether such an event was written."""
    return any(
        isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        for event in read_events(path)
    )


def steps_done(run: Path, number: int = 1) -> int:
    """How many steps were done when an attempt had made its last one."""
    events = read_events(attempt_folder(run, number) / EVENTS)
    return max((event.step + 1 for event in events if isinstance(event, StepDone)), default=0)
