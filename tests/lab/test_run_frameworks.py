"""Scripts as the frameworks' documentation shows them, under `holdfast run`: struck, or with a loader that sticks.

HOLDFAST_LAB_PYTHON names an interpreter that has lightning, trl and sentence-transformers.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.lab.preloaded import PYTHON, has_library
from tests.lab.supervised import SCRIPTS, Supervised, finish, start, supervise, wait_for_step, weights
from tests.tiny import tiny_bert, tiny_llama

pytestmark = [pytest.mark.lab, pytest.mark.full]
DEADLOCK = Path(__file__).parent / "faults" / "loader_deadlock"
VARIABLES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
EPOCHS = "num_train_epochs=6"


class Framework:
    """One script, ready to run with an output folder."""

    def __init__(self, library: str, script: str, make_model=None, options: tuple[str, ...] = (), launcher=(PYTHON,)):
        self.library, self.script, self.options = library, SCRIPTS / script, options
        self.make_model, self.launcher = make_model, launcher

    def command(self, folder: Path, output: Path, *more: str) -> tuple[object, ...]:
        model = (self.make_model(folder / "model"),) if self.make_model else ()
        return (*self.launcher, self.script, *model, output, *self.options, *more)


LAUNCH = (PYTHON, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TWO_RANKS = (EPOCHS, "use_cpu=true", 'ddp_backend="gloo"')
FRAMEWORKS = {
    "Trainer": Framework("transformers", "hf_classify.py", tiny_bert, (EPOCHS,)),
    "accelerate launch": Framework("accelerate", "hf_classify.py", tiny_bert, (EPOCHS,), LAUNCH),
    "torchrun": Framework("accelerate", "hf_classify.py", tiny_bert, TWO_RANKS, TORCHRUN),
    "Lightning": Framework("lightning.pytorch", "lightning_classify.py", None, ("max_epochs=6",)),
    "SFTTrainer": Framework("trl", "trl_sft.py", tiny_llama, (EPOCHS,)),
    "SentenceTransformerTrainer": Framework("sentence_transformers", "st_retrieval.py", tiny_bert, (EPOCHS,)),
}
WORKERS = {"Lightning": "workers=2", "torchrun": "dataloader_num_workers=1"}
_UNBROKEN: dict[str, str] = {}


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> str:
    if not has_library(FRAMEWORKS[request.param].library):
        pytest.skip(f"{FRAMEWORKS[request.param].library} is not installed in {PYTHON}")
    return request.param


def unbroken(name: str, folder: Path) -> str:
    if name not in _UNBROKEN:
        made = FRAMEWORKS[name]
        done = supervise(folder / "whole", *made.command(folder, folder / "whole_out"), **VARIABLES)
        assert done.exit_code == 0, done.output
        _UNBROKEN[name] = model_weights(folder / "whole_out")
    return _UNBROKEN[name]


def model_weights(output: Path) -> str:
    return weights(output if (output / "final.pt").exists() else output / "final")


def report(lab_row, fault: str, name: str, done: Supervised, wanted: str, output: Path) -> None:
    first = done.outcomes[0]
    same = done.exit_code == 0 and model_weights(output) == wanted
    lab_row(
        fault=fault,
        phase="step",
        task=name,
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis or "",
        finished=done.exit_code == 0,
        identical=same,
    )
    assert done.exit_code == 0, done.output
    assert len(done.outcomes) == 2
    assert same
    assert not (done.run / "checkpoints").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV], ids=lambda number: number.name)
def test_fault_in_mid_epoch_keeps_the_weights(tmp_path, lab_row, framework, number):
    wanted, run = unbroken(framework, tmp_path), tmp_path / "run"
    process = start(run, *FRAMEWORKS[framework].command(tmp_path, tmp_path / "out"), **VARIABLES)
    os.kill(wait_for_step(run, 18), number)
    report(lab_row, number.name, framework, finish(process, run), wanted, tmp_path / "out")


def test_a_loader_that_deadlocks_is_named_and_the_run_finishes(tmp_path, lab_row, framework):
    wanted, run = unbroken(framework, tmp_path), tmp_path / "run"
    workers = WORKERS.get(framework, "dataloader_num_workers=2")
    command = FRAMEWORKS[framework].command(tmp_path, tmp_path / "out", workers)
    path = os.pathsep.join([str(DEADLOCK), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = supervise(run, *command, **VARIABLES, PYTHONPATH=path)
    report(lab_row, "loader deadlock", framework, done, wanted, tmp_path / "out")
    assert done.outcomes[0].diagnosis in ("dataloader-deadlock", "thread-deadlock")
    assert done.outcomes[1].changes["loader_workers"] == 0
