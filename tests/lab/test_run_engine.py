"""Our own engine under the supervisor: struck in every phase of every task, it ends with the same weights."""

import json
import os
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import RequestError
from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import REQUEST, SETTINGS, attempt_folder, model_folder
from holdfast.core.settings import EngineSettings
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.supervisor.child import Launch
from holdfast.supervisor.ladders import engine_ladder
from holdfast.supervisor.outcome import engine_error
from tests.lab.supervised import weights
from tests.tiny import (
    tiny_bert,
    tiny_instructions,
    tiny_llama,
    tiny_prepared,
    tiny_questions,
)

pytestmark = pytest.mark.lab
MAKERS = {
    "classify": (tiny_bert, tiny_prepared),
    "causal": (tiny_llama, tiny_instructions),
    "two-tower": (tiny_bert, tiny_questions),
}
STRIKE = Path(__file__).parent / "faults" / "strike"
OUTSIDE = {"SIGKILL": "process-killed", "SIGSTOP": "process-stopped", "SIGSEGV": "segfault-other"}


class Unbroken:
    """The parts of each task and the weights of its unbroken run, made once."""

    def __init__(self, folder: Path, device: str = "cpu"):
        self._folder, self._device = folder, device
        self._weights: dict[str, str] = {}

    def parts(self, task: str) -> tuple[Path, Path]:
        model, prepared = self._folder / f"{task}-model", self._folder / f"{task}-prepared"
        if not model.exists():
            make_model, make_prepared = MAKERS[task]
            make_model(model)
            make_prepared(prepared)
        return model, prepared

    def weights(self, task: str) -> str:
        if task not in self._weights:
            run = self._folder / f"{task}-run"
            result = supervise(run, job(run, task, self.parts(task), device=self._device))
            assert (result.state, result.attempts) == ("finished", 1), result
            self._weights[task] = weights(model_folder(run))
        return self._weights[task]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Unbroken:
    return Unbroken(tmp_path_factory.mktemp("unbroken"))


def job(run: Path, task: str, parts: tuple[Path, Path], strike: str = "", device: str = "cpu") -> RunSpec:
    """The engine's run of a task; `strike` is what hits its first attempt, see faults/strike."""
    run.mkdir(parents=True, exist_ok=True)
    (run / REQUEST).write_text(json.dumps({"kind": "lab"}))
    settings = {"task": task, "save_seconds": 0, "micro_tokens": 256, "threads": 1, "eval_steps": 12}
    settings |= {"lr": 1e-3, "batch_size": 8, "epochs": 3, "device": device}

    def launch(attempt: Path, changes, resume: bool) -> Launch:
        variables = {name: str(value) for name, value in changes.items() if name.isupper()}
        own = {name: value for name, value in changes.items() if not name.isupper()}
        places = {"model": str(parts[0]), "prepared": str(parts[1]), "run": str(run)}
        (attempt / SETTINGS).write_text(json.dumps({**settings, **places, **own}))
        command = (sys.executable, "-m", "holdfast.engine", str(attempt))
        hit = {"STRIKE": strike, "PYTHONPATH": str(STRIKE)} if strike and attempt.name == "01" else {}
        return Launch(command, Path.cwd(), {**os.environ, **variables, **hit}, attempt)

    first = EngineSettings(model=str(parts[0]), prepared=str(parts[1]), run=str(run), **settings)
    return RunSpec(kind="lab", words="engine", make_launch=launch, ladder=engine_ladder(first))


def cases():
    quick = {("SIGKILL", "save", "classify"), ("SIGSTOP", "step", "classify")}
    for task in MAKERS:
        for phase in ("import", "load", "first step", "step", "evaluate", "save", "export"):
            for name in OUTSIDE:
                marks = () if (name, phase, task) in quick else pytest.mark.full
                yield pytest.param(name, phase, task, marks=marks, id=f"{name}-{phase}-{task}")


@pytest.mark.parametrize(("name", "phase", "task"), list(cases()))
def test_fault_in_any_phase_keeps_the_weights(tmp_path, unbroken, lab_row, name, phase, task):
    run = tmp_path / "run"
    wanted = unbroken.weights(task)
    strike = f"{name}:{phase}:{20 if phase == 'step' else 0}"
    result = supervise(run, job(run, task, unbroken.parts(task), strike))
    first = read_record(attempt_folder(run, 1), Outcome)
    same = result.state == "finished" and weights(model_folder(run)) == wanted
    lab_row(
        fault=name,
        phase=phase,
        task=task,
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis or "",
        finished=result.state == "finished",
        identical=same,
    )
    assert result.state == "finished", result
    assert result.attempts == 2
    assert first.diagnosis == OUTSIDE[name]
    assert first.noticed_after_seconds is None or first.noticed_after_seconds < 15
    assert same


@pytest.mark.full
def test_nan_loss_stops_after_all_remedies(tmp_path, unbroken):
    run = tmp_path / "run"
    made = job(run, "classify", unbroken.parts("classify"))

    def launch(attempt: Path, changes, resume: bool) -> Launch:
        started = made.make_launch(attempt, changes, resume)
        settings = json.loads((attempt / SETTINGS).read_text())
        settings |= {"lr": 1e30, "warmup_ratio": 0.0, "max_grad_norm": 0.0}
        (attempt / SETTINGS).write_text(json.dumps(settings))
        return started

    result = supervise(run, RunSpec(kind="lab", words="engine", make_launch=launch, ladder=made.ladder, max_attempts=4))
    assert result.state == "failed"
    assert result.exit_code == 4
    assert result.slug == "nan-loss"


def test_own_refusal_keeps_its_advice(tmp_path, unbroken):
    run, other = tmp_path / "run", tmp_path / "other"
    model, prepared = unbroken.parts("classify")
    tiny_bert(other, hidden_size=48)
    made = job(run, "classify", (model, prepared), "SIGKILL:step:20")

    def launch(attempt: Path, changes, resume: bool) -> Launch:
        started = made.make_launch(attempt, changes, resume)
        if resume:  # the model's folder was replaced meanwhile
            settings = json.loads((attempt / SETTINGS).read_text())
            (attempt / SETTINGS).write_text(json.dumps({**settings, "model": str(other)}))
        return started

    result = supervise(run, RunSpec(kind="lab", words="engine", make_launch=launch, ladder=made.ladder))
    refused = engine_error(attempt_folder(run, 2))
    assert isinstance(refused, RequestError)
    assert read_record(attempt_folder(run, 2), Outcome).error == refused.what
    assert (result.state, result.remedies[0]) == ("failed", refused.try_next[0])
