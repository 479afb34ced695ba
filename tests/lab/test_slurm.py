"""deploy/slurm/train.sbatch on a real Slurm of two machines: it finishes, and goes on when its time was up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.runfolder import RESULT, attempt_folder, part_folder
from tests.lab.slurm import Slurm, missing_tools
from tests.lab.supervised import SCRIPTS, weights
from tests.lab.together import unbroken_weights
from tests.lab.trained import finish, make_world, train
from tests.lab.trained import weights as trained_weights

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"
pytestmark = [
    pytest.mark.lab,
    pytest.mark.full,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools()),
]
VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
TRAIN = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=%x-%j.log
srun --kill-on-bad-exit=0 holdfast train texts.csv --nodes "$SLURM_NNODES" --out runs/one "$@"
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def test_slurm_takes_the_script(slurm):
    assert "to start at" in slurm.ask("sbatch", "--test-only", str(SCRIPT), "train.py")


def test_the_job_finishes_with_a_part_of_each_machine(slurm):
    job = slurm.submit(SCRIPT, str(SCRIPTS / "ranks.py"), "out", **VARIABLES)
    slurm.wait_until(lambda: slurm.state_of(job) not in ("PENDING", "RUNNING", "COMPLETING"), "it did not end")
    said = (slurm.folder / f"train-{job}.log").read_text()
    assert slurm.state_of(job) == "COMPLETED", said
    run = slurm.folder / "runs" / f"train-{job}"
    assert read_artifact(run / RESULT)["state"] == "finished"
    assert len(list((attempt_folder(run, 1) / "nodes").iterdir())) == 1
    assert weights(slurm.folder / "out") == unbroken_weights()


def test_timed_out_slurm_job_saves_and_continues(slurm):
    """As the daemon does it three minutes before the end: SIGTERM to the steps, not to the script around them."""
    job = slurm.submit(SCRIPT, str(SCRIPTS / "ranks.py"), "out", PAUSE="0.3", **VARIABLES)
    log = slurm.folder / f"train-{job}.log"
    slurm.wait_until(lambda: (slurm.folder / "out" / "checkpoint.pt").exists(), "it made no checkpoint")
    slurm.ask("scancel", "--signal=TERM", job)
    slurm.wait_until(lambda: "requeued" in log.read_text(), "it was not requeued")
    slurm.wait_until(lambda: slurm.state_of(job) == "COMPLETED", "it did not end")
    run = slurm.folder / "runs" / f"train-{job}"
    assert part_folder(attempt_folder(run, 2), "one").exists() or part_folder(attempt_folder(run, 2), "two").exists()
    assert weights(slurm.folder / "out") == unbroken_weights()


def test_one_model_is_trained_on_both_machines(slurm):
    given = ("--prove", "never")
    world = make_world(slurm.folder)
    finish(train(world, world / "alone", "--processes", "2", *given))
    script = slurm.folder / "one.sbatch"
    script.write_text(TRAIN)
    words = ("--model", "model", "--threads", "1", "--epochs", "3", "--batch-size", "16", "--lr", "1e-3", *given)
    caches = {"XDG_CACHE_HOME": str(world / "cache"), "XDG_STATE_HOME": str(world / "state")}
    job = slurm.submit(script, *words, HOLDFAST_NODE_ADDRESS="127.0.0.1", **caches, **VARIABLES)
    slurm.wait_until(lambda: slurm.state_of(job) not in ("PENDING", "RUNNING", "COMPLETING"), "it did not end")
    said = (slurm.folder / f"one.sbatch-{job}.log").read_text()
    assert slurm.state_of(job) == "COMPLETED", said
    assert trained_weights(slurm.folder / "runs" / "one") == trained_weights(world / "alone")
