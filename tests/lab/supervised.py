"""Starts `holdfast run` for lab tests, and reads what it left."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.evidence import Decision
from holdfast.core.heartbeat import read_beat
from holdfast.core.plan import Reason
from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import OUTPUT

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """A run that has ended."""

    run: Path
    exit_code: int
    output: str

    @property
    def outcomes(self) -> list[Outcome]:
        return [one for folder in sorted((self.run / "attempts").iterdir()) if (one := read_record(folder, Outcome))]

    @property
    def result(self) -> dict:
        return json.loads((self.run / "result.json").read_text())

    @property
    def reason(self) -> Reason:
        """Why nothing more was tried."""
        decision = read_record(self.attempt(len(self.outcomes)), Decision)
        assert decision
        return decision.reason

    def attempt(self, number: int) -> Path:
        return self.run / "attempts" / f"{number:02d}"

    def log(self, number: int) -> str:
        return (self.attempt(number) / OUTPUT).read_text(errors="replace")


def start(run: Path, *command: object, options: tuple[str, ...] = (), **variables: str) -> subprocess.Popen:
    """Start a supervisor in the background of a test, in a session of its own."""
    environment = {**os.environ, "XDG_STATE_HOME": str(run.parent / "state"), **variables}
    run.parent.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--run", str(run), *options, "--", *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=(run.parent / f"{run.name}.out").open("ab"),
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=run.parent,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )


def hear_ctrl_c() -> None:
    """Take Ctrl-C as usual, also when the tests were started in a shell's background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen, run: Path) -> Supervised:
    """Wait for a supervisor to end."""
    try:
        code = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        raise
    return Supervised(run=run, exit_code=code, output=(run.parent / f"{run.name}.out").read_text(errors="replace"))


def supervise(run: Path, *command: object, options: tuple[str, ...] = (), **variables: str) -> Supervised:
    """Run a command under `holdfast run` to its end."""
    return finish(start(run, *command, options=options, **variables), run)


def resume(run: Path, **variables: str) -> Supervised:
    """Take a run up again and bring it to its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "resume", str(run)],
        stdin=subprocess.DEVNULL,
        stdout=(run.parent / f"{run.name}.out").open("ab"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "XDG_STATE_HOME": str(run.parent / "state"), **variables},
        start_new_session=True,
    )
    return finish(process, run)


def wait_for_step(run: Path, step: int, attempt: int = 1) -> int:
    """Wait until a process of the attempt has done that many steps; give its pid."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        for page in (run / "attempts" / f"{attempt:02d}" / "beats").glob("*"):
            beat = read_beat(page)
            if beat and beat.step >= step:
                return int(page.name)
        time.sleep(0.005)
    raise AssertionError(f"step {step} of attempt {attempt} never came")


def weights(folder: Path) -> str:
    """A fingerprint of the saved model."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("final.pt")])
    assert files, f"no model in {folder}"
    if files[0].suffix == ".pt":
        import torch

        state = torch.load(files[0])
        return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
