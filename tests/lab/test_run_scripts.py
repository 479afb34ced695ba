"""Unmodified Trainer scripts under `holdfast run`: broken in many ways, they end with the unbroken run's weights."""

import os
import signal
import sys

import pytest

from holdfast.runs.cause_wording import outcome_text
from tests.lab.supervised import SCRIPTS, finish, start, supervise, wait_for_step, weights

pytestmark = pytest.mark.lab
SCRIPT = SCRIPTS / "hf_tiny.py"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("unbroken")
    done = supervise(folder / "run", sys.executable, SCRIPT, folder / "out")
    assert done.exit_code == 0, done.output
    assert len(done.outcomes) == 1
    return weights(folder / "out" / "final")


def test_loader_deadlock_is_named_and_run_finishes(tmp_path, unbroken, lab_row):
    fault = {"FAULT": "loader deadlock", "WORKERS": "2"}
    done = supervise(tmp_path / "run", sys.executable, SCRIPT, tmp_path / "out", **fault)
    first, last = done.outcomes[0], done.outcomes[-1]
    same = weights(tmp_path / "out" / "final") == unbroken
    lab_row(
        fault="loader deadlock at step 40",
        phase="step",
        task="Trainer",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=done.exit_code == 0,
        identical=same,
    )
    assert done.exit_code == 0, done.output
    assert first.outcome == "hung"
    assert first.noticed_after_seconds < 30  # 4 to 6 on an idle machine
    assert first.diagnosis in ("dataloader-deadlock", "lock-deadlock")
    assert last.changes == {"loader_workers": 0}
    assert "resumed from checkpoint-30" in done.output
    assert same


@pytest.mark.parametrize(
    ("fault", "slug"),
    [
        pytest.param("segfault", "segfault-other", marks=pytest.mark.full),
        pytest.param("abort", "segfault-other", marks=pytest.mark.full),
        pytest.param("nan", "nan-loss", marks=pytest.mark.full),
    ],
)
def test_a_trainer_that_breaks_once_ends_with_the_same_weights(tmp_path, unbroken, lab_row, fault, slug):
    done = supervise(tmp_path / "run", sys.executable, SCRIPT, tmp_path / "out", FAULT=fault)
    first = done.outcomes[0]
    assert done.exit_code == 0, done.output
    same = weights(tmp_path / "out" / "final") == unbroken
    lab_row(
        fault=fault,
        phase="step",
        task="Trainer",
        noticed_after_seconds=None,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert first.diagnosis == slug
    assert first.step_reached >= 25
    assert len(done.outcomes) == 2
    assert same


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="SIGKILL"),
        pytest.param(signal.SIGSTOP, id="SIGSTOP", marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.full),
    ],
)
def test_externally_killed_trainer_keeps_its_plan(tmp_path, unbroken, lab_row, number):
    run = tmp_path / "run"
    process = start(run, sys.executable, SCRIPT, tmp_path / "out")
    os.kill(wait_for_step(run, 33), number)
    done = finish(process, run)
    first = done.outcomes[0]
    assert done.exit_code == 0, done.output
    same = weights(tmp_path / "out" / "final") == unbroken
    lab_row(
        fault=number.name,
        phase="step",
        task="Trainer",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert first.is_external
    assert first.diagnosis == ("process-stopped" if number is signal.SIGSTOP else "process-killed")
    assert [one.changes for one in done.outcomes] == [{}, {}]
    assert first.noticed_after_seconds is None or first.noticed_after_seconds < 15
    assert same


@pytest.mark.full
def test_a_livelock_is_noticed_by_its_steps(tmp_path, unbroken, lab_row):
    done = supervise(tmp_path / "run", sys.executable, SCRIPT, tmp_path / "out", FAULT="livelock")
    first = done.outcomes[0]
    assert done.exit_code == 0, done.output
    same = weights(tmp_path / "out" / "final") == unbroken
    lab_row(
        fault="livelock",
        phase="step",
        task="Trainer",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert first.outcome == "hung"
    assert 25 < first.noticed_after_seconds < 400  # a crowded machine gets more time
    assert same


@pytest.mark.full
def test_script_bug_is_reported_after_one_retry(tmp_path):
    done = supervise(tmp_path / "run", sys.executable, SCRIPT, tmp_path / "out", FAULT="value error")
    assert done.exit_code == 4
    assert len(done.outcomes) == 2
    assert "ValueError: the batch is odd" in outcome_text(done.outcomes[-1])
    assert "ValueError: the batch is odd" in done.output
