"""The trainings of `bare.py`: run alone, restarted after each exit, and with Holdfast, each with a fault of the lab."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import attempt_folder, model_folder
from holdfast.runs.supervise import RunSpec
from holdfast.runs.supervise import supervise as supervise_job
from tests.lab.preloaded import has_library
from tests.lab.supervised import supervise, weights
from tests.lab.test_run_engine import STRIKE, Unbroken, job
from tests.lab.test_run_frameworks import DEADLOCK, FRAMEWORKS, VARIABLES, WORKERS, model_weights

QUIET_SECONDS = 60.0  # less than a second of CPU time in this long is a hang, however busy the machine is
MOST_CPU_SECONDS = 75.0  # many times what an undisturbed run needs
ROUNDS = 5  # of the shell loop
STEP = 18
LOADER = "loader deadlock"
ENGINE = "Holdfast's engine"
SCRIPTS = {"HF Trainer": "Trainer", "Lightning": "Lightning", "sentence-transformers": "SentenceTransformerTrainer"}
_RESUMES = (
    ("import sys\n", "import os, sys\n"),
    (
        "trainer.train()",
        "from transformers.trainer_utils import get_last_checkpoint\n"
        "trainer.train(resume_from_checkpoint=get_last_checkpoint(output) if os.path.isdir(output) else None)",
    ),
)
_LIGHTNING_RESUMES = (
    (
        '"max_epochs": 3,',
        '"max_epochs": 3, "callbacks": [lightning.pytorch.callbacks.ModelCheckpoint('
        'f"{output}/saved", save_last=True, every_n_train_steps=10)],',
    ),
    ("DataLoader(rows, batch_size=64),", 'DataLoader(rows, batch_size=64),\n    ckpt_path="last",'),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of one fault in one way of running."""

    subject: str
    fault: str
    phase: str
    way: str
    finished: bool
    same: bool
    how: str  # "hung", "exit -9", ...
    noticed_after_seconds: float | None = None


class Subject:
    """One training that can run bare, in a shell loop, and with Holdfast."""

    def __init__(self, name: str, folder: Path):
        self.name, self._folder, self._unbroken = name, folder, ""
        self._lock = threading.Lock()

    def measure(self, fault: str, phase: str) -> list[Seen]:
        """Cause one fault in each way; nothing if this training cannot have it."""
        if not self.can_have(fault):
            return []
        with self._lock:
            self._unbroken = self._unbroken or self.unbroken()
        place = self._folder / f"{fault}-{phase}".replace(" ", "-")
        (place / "holdfast").mkdir(parents=True)
        seen, hows, code = [], [], None
        for number in range(1, ROUNDS + 1):
            code = self.run_once(place, number, fault, phase)
            hows.append("hung" if code is None else f"exit {code}")
            if number == 1:
                seen.append(self._seen(fault, phase, "bare", code, self.bare_weights(place), hows))
            if not code:  # finished, or hung without supervision
                break
            time.sleep(1)
        seen.append(self._seen(fault, phase, "shell loop", code, self.bare_weights(place), hows))
        code, noticed, found = self.run_held(place / "holdfast", fault, phase)
        return [*seen, self._seen(fault, phase, "holdfast", code, found, [f"exit {code}"], noticed)]

    def can_have(self, fault: str) -> bool:
        """Whether the fault is possible here."""
        raise NotImplementedError

    def unbroken(self) -> str:
        """The weights of an undisturbed run."""
        raise NotImplementedError

    def run_once(self, place: Path, number: int, fault: str, phase: str) -> int | None:
        """Run the command once; return its exit code, None if it hung."""
        raise NotImplementedError

    def bare_weights(self, place: Path) -> str | None:
        """The model, if there is one."""
        raise NotImplementedError

    def run_held(self, place: Path, fault: str, phase: str) -> tuple[int, float | None, str | None]:
        """Run with Holdfast; return the exit code, when the fault was detected, and the model."""
        raise NotImplementedError

    def _seen(
        self,
        fault: str,
        phase: str,
        way: str,
        code: int | None,
        found: str | None,
        hows: list[str],
        noticed: float | None = None,
    ) -> Seen:
        finished = code == 0 and found is not None
        same = finished and found == self._unbroken
        return Seen(self.name, fault, phase, way, finished, same, ", then ".join(hows), noticed)


class Engine(Subject):
    """Holdfast's engine, which resumes from its own checkpoints however it is started."""

    def __init__(self, folder: Path, device: str):
        super().__init__(ENGINE, folder)
        self._device, self._parts = device, Unbroken(folder / "parts", device)

    def can_have(self, fault: str) -> bool:
        """It has no loader that could deadlock, and NaN cannot be injected into its weights."""
        return fault not in (LOADER, "nan")

    def unbroken(self) -> str:
        """The command as in the lab."""
        return self._parts.weights("classify")

    def run_once(self, place: Path, number: int, fault: str, phase: str) -> int | None:
        """One attempt without a supervisor."""
        run = place / "bare"
        attempt = attempt_folder(run, number)
        attempt.mkdir(parents=True)
        launch = self._job(run, fault, phase).make_launch(attempt, {}, number > 1)
        return run_bare(launch.command, attempt, launch.environment)

    def bare_weights(self, place: Path) -> str | None:
        """Of the run's folder."""
        return _weights_in(model_folder(place / "bare"))

    def run_held(self, place: Path, fault: str, phase: str) -> tuple[int, float | None, str | None]:
        """Under its supervisor."""
        run = place / "run"
        result = supervise_job(run, self._job(run, fault, phase))
        first = read_record(attempt_folder(run, 1), Outcome)
        return result.exit_code, first and first.noticed_after_seconds, _weights_in(model_folder(run))

    def _job(self, run: Path, fault: str, phase: str) -> RunSpec:
        at = f"{fault}:{phase}:{STEP if phase == 'step' else 0}"
        return job(run, "classify", self._parts.parts("classify"), at, self._device)


class Script(Subject):
    """A script of the lab; for the shell loop with the lines that save and resume."""

    def __init__(self, name: str, folder: Path):
        super().__init__(name, folder)
        made = FRAMEWORKS[SCRIPTS[name]]
        self._words = made.command(folder, Path("OUTPUT"))
        self._workers = WORKERS.get(SCRIPTS[name], "dataloader_num_workers=2")
        self._resuming = folder / f"resuming_{made.script.name}"
        lines = _LIGHTNING_RESUMES if name == "Lightning" else _RESUMES
        self._saves = () if name == "Lightning" else ("save_steps=10",)
        self._script, text = made.script, made.script.read_text()
        for old, new in lines:
            assert old in text, f"{made.script} has no {old!r}"
            text = text.replace(old, new)
        self._resuming.write_text(text)

    def can_have(self, fault: str) -> bool:
        """All of them."""
        return True

    def unbroken(self) -> str:
        """The unmodified script, alone."""
        place = self._folder / "unbroken"
        place.mkdir()
        code = run_bare(self._command(self._script, place / "out"), place, os.environ | VARIABLES)
        assert code == 0, (place / "output.txt").read_text()[-3000:]
        return model_weights(place / "out")

    def run_once(self, place: Path, number: int, fault: str, phase: str) -> int | None:
        """The script that saves and resumes, alone."""
        command = self._command(self._resuming, place / "out", *self._saves, *self._more(fault))
        return run_bare(command, place, os.environ | self._variables(place, fault, phase))

    def bare_weights(self, place: Path) -> str | None:
        """Of the script's output."""
        return _weights_in(place / "out", model_weights)

    def run_held(self, place: Path, fault: str, phase: str) -> tuple[int, float | None, str | None]:
        """The unmodified script, under `holdfast run`."""
        command = self._command(self._script, place / "out", *self._more(fault))
        done = supervise(place / "run", *command, **self._variables(place, fault, phase))
        noticed = done.outcomes[0].noticed_after_seconds if done.outcomes else None
        return done.exit_code, noticed, _weights_in(place / "out", model_weights)

    def _command(self, script: Path, output: Path, *more: str) -> tuple[str, ...]:
        words = [script if word == self._script else output if word == Path("OUTPUT") else word for word in self._words]
        return (*map(str, words), *more)

    def _more(self, fault: str) -> tuple[str, ...]:
        return (self._workers,) if fault == LOADER else ()

    def _variables(self, place: Path, fault: str, phase: str) -> dict[str, str]:
        if fault == LOADER:
            return {**VARIABLES, "PYTHONPATH": str(DEADLOCK)}
        at = f"{fault}:{phase}:{STEP if phase == 'step' else 1}"
        return {**VARIABLES, "PYTHONPATH": str(STRIKE), "STRIKE": at, "STRIKE_ONCE": str(place / "struck")}


def make_subjects(folder: Path, wanted: list[str], device: str) -> list[Subject]:
    """The selected trainings that this machine can run; scripts use a card automatically."""
    made: list[Subject] = []
    for name in wanted:
        place = folder / name.replace(" ", "-")
        place.mkdir()
        if name == ENGINE:
            made.append(Engine(place, device))
        elif has_library(FRAMEWORKS[SCRIPTS[name]].library):
            made.append(Script(name, place))
        else:
            print(f"{name} is skipped: HOLDFAST_LAB_PYTHON has no {FRAMEWORKS[SCRIPTS[name]].library}")
    return made


def run_bare(command: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> int | None:
    """Run a command without a supervisor; return its exit code, None if it hangs."""
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        worked_at, counted = time.monotonic(), 0.0
        while process.poll() is None:
            time.sleep(0.5)
            used = _cpu_seconds(process.pid)
            if used > counted + 1:
                worked_at, counted = time.monotonic(), used
            if time.monotonic() > worked_at + QUIET_SECONDS or used > MOST_CPU_SECONDS:
                return None
        return process.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants."""
    used = 0.0
    with contextlib.suppress(psutil.Error):
        for one in (root := psutil.Process(pid), *root.children(recursive=True)):
            times = one.cpu_times()
            used += times.user + times.system
    return used


def _weights_in(folder: Path, read: Callable[[Path], str] = weights) -> str | None:
    """The fingerprint of a model, or None."""
    try:
        return read(folder)
    except AssertionError:
        return None
