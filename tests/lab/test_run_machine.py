"""Faults of the machine: the kernel kills for memory, the disk is full, a rank dies or hangs under torchrun."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runs.cause_wording import outcome_text
from tests.lab.supervised import SCRIPTS, supervise, weights

pytestmark = pytest.mark.lab
TRAINER = SCRIPTS / "hf_tiny.py"


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes may take 750 MB together."""
    group = Path("/sys/fs/cgroup/memory") / f"holdfast-lab-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("750000000")
    except OSError:
        pytest.skip("a memory control group can be made by root only, where version 1 is mounted")
    yield group
    group.rmdir()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 2 MB; one checkpoint of the tiny model takes 0.9, and its final model 0.3."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a small disk can be made by root only")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.full
def test_oom_kill_finishes_with_smaller_micro_batches(tmp_path, small_memory, lab_row):
    move = f"echo $$ > {small_memory}/cgroup.procs; exec {sys.executable} {TRAINER} {tmp_path}/out 20"
    done = supervise(tmp_path / "run", "sh", "-c", move, FAULT="memory", BATCH="16")
    first, last = done.outcomes[0], done.outcomes[-1]
    lab_row(
        fault="kernel kills for memory",
        phase="step",
        task="Trainer",
        noticed_after_seconds=None,
        named=first.diagnosis,
        finished=done.exit_code == 0,
        identical=None,
    )
    assert done.exit_code == 0, done.output
    assert first.diagnosis == "host-oom"
    assert first.confidence == "proven"
    assert "OOM kill" in outcome_text(first)
    assert last.changes["micro_batch_factor"] > 1
    assert "'loss': '0." in done.log(len(done.outcomes))  # a mean still, not a sum over the parts
    assert (tmp_path / "out" / "final" / "model.safetensors").exists()


@pytest.mark.full
def test_full_disk_run_finishes_without_some_checkpoints(tmp_path, small_disk, lab_row):
    done = supervise(tmp_path / "run", sys.executable, TRAINER, small_disk / "out")
    first = done.outcomes[0]
    lab_row(
        fault="disk full",
        phase="save",
        task="Trainer",
        noticed_after_seconds=None,
        named=first.diagnosis,
        finished=done.exit_code == 0,
        identical=None,
    )
    assert done.exit_code == 0, done.output
    assert first.diagnosis == "disk-full"
    assert (small_disk / "out" / "final" / "model.safetensors").exists()


@pytest.mark.full
@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_rank_that_fails_is_named_and_the_job_finishes(tmp_path, lab_row, fault):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    whole = supervise(tmp_path / "whole", *torchrun, SCRIPTS / "ranks.py", tmp_path / "whole_out")
    assert whole.exit_code == 0, whole.output
    options = ("--step-timeout", "10")
    done = supervise(tmp_path / "run", *torchrun, SCRIPTS / "ranks.py", tmp_path / "out", options=options, FAULT=fault)
    first = done.outcomes[0]
    assert done.exit_code == 0, done.output
    same = weights(tmp_path / "out") == weights(tmp_path / "whole_out")
    lab_row(
        fault=f"rank 1 {fault}",
        phase="step",
        task="torchrun",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert "rank 1" in outcome_text(first) or "rank 1" in done.output
    assert same
