"""Real ranks under torchrun: they learn what one process learns, and a run goes on with any number of them."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from holdfast.core.events import (
    BadNumbersFound,
    CheckpointSaved,
    RankEnded,
    RankStarted,
    Resumed,
    TrainingFinished,
    TrainingStarted,
    TrainingStopped,
)
from holdfast.engine.attempt_settings import read_attempt_settings
from tests.lab.ranked import (
    events,
    finish,
    finish_all,
    losses,
    metrics,
    ranks_of,
    saved_steps,
    start,
    wait_until_gone,
    weights,
)
from tests.tiny import tiny_attempt, tiny_bert, tiny_instructions, tiny_llama, tiny_prepared, tiny_questions
from tests.unit.engine.test_parity import STEPS, our_losses

pytestmark = pytest.mark.lab
full = pytest.mark.full
LORA = {"lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}}
MINING = {"mining": {"from_epoch": 1, "last_rank": 20, "negatives": 2}}
CASES = {
    "classify": {},
    "classify, shards": {"shard": True, "micro_tokens": 60},
    "causal": {"task": "causal", "micro_tokens": 60},
    "causal, shards": {"task": "causal", "shard": True, "micro_tokens": 60},
    "LoRA": {"task": "causal", "options": LORA},
    "LoRA, shards": {"task": "causal", "shard": True, "options": LORA},
    "towers": {"task": "two-tower"},
    "towers, cached": {
        **{"task": "two-tower", "micro_tokens": 60},
        "options": {"towers": "separate", "learn_temperature": True},
    },
    "towers, mined": {"task": "two-tower", "options": MINING},
    "towers, shards": {"task": "two-tower", "shard": True, "micro_tokens": 100},
}
LONG = {"epochs": 12}  # 144 steps, so that a signal finds them at work


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("parts")
    bert, llama = tiny_bert(folder / "bert"), tiny_llama(folder / "llama")
    return {
        "classify": (bert, tiny_prepared(folder / "labels")),
        "causal": (llama, tiny_instructions(folder / "chats")),
        "two-tower": (bert, tiny_questions(folder / "pairs")),
    }


def attempt_for(parts, run: Path, number: int = 1, **settings) -> Path:
    return tiny_attempt(run, *parts[settings.get("task", "classify")], number=number, **settings)


@pytest.fixture(scope="module")
def learned(parts, tmp_path_factory) -> dict[str, dict[int, Path]]:
    """Every case learned by one process and by two."""
    folder = tmp_path_factory.mktemp("learned")
    runs = {case: {size: folder / f"{case} {size}" for size in (1, 2)} for case in CASES}
    for size in (1, 2):
        finish_all([attempt_for(parts, runs[case][size], epochs=2, **CASES[case]) for case in CASES], size)
    return runs


@pytest.fixture(scope="module")
def unbroken(parts, tmp_path_factory) -> Path:
    """A longer run of two ranks that nothing happened to."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    finish(attempt_for(parts, run, **LONG), 2)
    return run


def same(one: Path, other: Path) -> bool:
    found, expected = weights(one), weights(other)
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def assert_alike(one: Path, other: Path) -> None:
    """The same but for rounding."""
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=2e-5, msg=name)
    for name, value in metrics(other).items():
        if isinstance(value, float):
            assert metrics(one)[name] == pytest.approx(value, rel=1e-3), name


def test_two_ranks_learn_what_one_process_learns(parts, tmp_path):
    attempt = attempt_for(parts, tmp_path / "run", max_steps=STEPS)
    job = start(attempt, 2)
    alone = our_losses(read_attempt_settings(attempt))
    assert job.wait(600) == 0, (attempt / "output.log").read_text()
    assert losses(attempt) == pytest.approx(alone, rel=1e-5)
    assert {event.rank for event in events(attempt, RankStarted)} == {0, 1}
    assert len(events(attempt, TrainingFinished)) == len(events(attempt, TrainingStarted)) == 1
    assert weights(tmp_path / "run")


@full
@pytest.mark.parametrize("case", CASES)
def test_every_task_learns_the_same_with_two_ranks(learned, case):
    one, two = (learned[case][size] for size in (1, 2))
    found, expected = (losses(run / "attempts" / "01") for run in (two, one))
    assert len(expected) == 24
    assert found == pytest.approx(expected, rel=1e-4)
    assert_alike(two, one)


@full
@pytest.mark.parametrize("case", ["classify", "causal, shards", "towers, mined"])
def test_same_number_of_ranks_gives_identical_bits(parts, learned, tmp_path, case):
    finish(attempt_for(parts, tmp_path / "again", epochs=2, **CASES[case]), 2)
    assert same(tmp_path / "again", learned[case][2])


@full
@pytest.mark.parametrize("ask", ["signal", "file"])
def test_stopped_ranks_leave_one_checkpoint_and_resume_exactly(parts, unbroken, tmp_path, ask):
    run = tmp_path / "run"
    first = attempt_for(parts, run, **LONG)
    job = start(first, 2)
    pids = ranks_of(first, 20)
    (first / "stop").touch() if ask == "file" else job.send_signal(signal.SIGTERM)
    assert job.wait(120) != 0
    wait_until_gone(list(pids.values()))
    (stopped,) = events(first, TrainingStopped)
    assert stopped.step < 144
    assert saved_steps(run)[-1] == f"step-{stopped.step:09d}"
    assert [event.step for event in events(first, CheckpointSaved)][-1] == stopped.step
    second = attempt_for(parts, run, number=2, **LONG)
    finish(second, 2)
    assert [event.step for event in events(second, Resumed)] == [stopped.step]
    assert same(run, unbroken)


@full
@pytest.mark.parametrize("case", ["classify", "causal, shards", "towers, mined"])
def test_two_rank_checkpoint_resumes_with_one_or_three(parts, learned, tmp_path, case):
    run = tmp_path / "saved"
    first = attempt_for(parts, run, epochs=2, **CASES[case])
    (first / "stop").touch()  # seen in the first step
    start(first, 2).wait(300)
    assert [event.step for event in events(first, TrainingStopped)] == [1], (first / "output.log").read_text()
    for size in (1, 3):
        other = tmp_path / f"by {size}"
        shutil.copytree(run, other)
        second = attempt_for(parts, other, number=2, epochs=2, **CASES[case])
        finish(second, size)
        assert [event.step for event in events(second, Resumed)] == [1]
        assert losses(first, second) == pytest.approx(losses(learned[case][1] / "attempts" / "01"), rel=1e-4)
        assert_alike(other, learned[case][1])


@full
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_leaves_no_processes_and_next_start_resumes(parts, unbroken, tmp_path, victim):
    run = tmp_path / "run"
    first = attempt_for(parts, run, save_seconds=0, **LONG)
    job = start(first, 2)
    pids = ranks_of(first, 20)
    os.kill(pids[victim], signal.SIGKILL)
    assert job.wait(120) != 0
    wait_until_gone(list(pids.values()))
    second = attempt_for(parts, run, number=2, **LONG)
    finish(second, 2)
    assert next(event.step for event in events(second, Resumed)) >= 10
    assert all(name.startswith("step-") for name in saved_steps(run))
    assert same(run, unbroken)


@full
def test_ranks_end_with_their_launcher_and_save_before(parts, tmp_path):
    first = attempt_for(parts, tmp_path / "run", **LONG)
    job = start(first, 2)
    pids = ranks_of(first, 20)
    job.kill()
    job.wait()
    wait_until_gone(list(pids.values()))
    (stopped,) = events(first, TrainingStopped)
    assert saved_steps(tmp_path / "run")[-1] == f"step-{stopped.step:09d}"


@full
def test_nan_loss_is_reported_once(parts, tmp_path):
    attempt = attempt_for(parts, tmp_path / "run", lr=1e30, warmup_ratio=0.0, max_grad_norm=0.0)
    assert start(attempt, 2).wait(300) != 0
    (told,) = events(attempt, BadNumbersFound)
    assert "nan-loss" in told.reason
    assert len(list((tmp_path / "run").glob("nan-batch-*.json"))) == 1


@full
def test_more_ranks_than_examples_in_a_step_are_refused(parts, tmp_path):
    attempt = attempt_for(parts, tmp_path / "run", batch_size=1)
    assert start(attempt, 2).wait(300) != 0
    assert {event.exit_code for event in events(attempt, RankEnded)} == {2}
    assert "2 processes, batch size 1" in (attempt / "output.log").read_text()
