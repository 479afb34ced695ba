"""Where ranks stand, from their stacks: the one that is waited for by its line, the others by their collective."""

import json
from pathlib import Path

import pytest

from holdfast.core.runfolder import CHILD, STACKS
from holdfast.supervisor.rank_stacks import rank_lines, told_by_stacks
from holdfast.supervisor.verdict import Judged, Standing, Verdict, rank_words
from holdfast.supervisor.watch import Look

GATHER = """\
    all_gather_single (torch/distributed/distributed_c10d.py:4394)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:4413)
    deprecated.__call__.<locals>.wrapper (typing_extensions.py:3140)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
"""
ENGINE = """\
    DistributedRanks.all_gather (holdfast/engine/ranks.py:142)
    StepAllReduce.agree (holdfast/engine/ranks.py:224)
    Loop._reduced_loss (holdfast/engine/loop.py:153)
"""
LOCKED = """\
    Event.wait (threading.py:629)
    Task.forward_backward (holdfast/engine/tasks/classify.py:90)
    Loop._loss (holdfast/engine/loop.py:140)
"""
RANKS = {31: 0, 32: 1}


@pytest.fixture
def attempt(tmp_path) -> Path:
    (tmp_path / STACKS).mkdir()
    (tmp_path / CHILD).write_text(json.dumps({"cwd": str(tmp_path), "command": ["torchrun", "train.py"]}))
    (tmp_path / "train.py").write_text("import torch\n" * 9)
    return tmp_path


def write(attempt: Path, pid: int, frames: str) -> None:
    other = 'Thread 9 (idle): "other"\n    run (x.py:1)\n'
    text = f'Process {pid}: python\n\nThread {pid} (idle): "MainThread"\n{frames}{other}'
    (attempt / STACKS / f"spy-{pid}.txt").write_text(text)


def test_awaited_rank_comes_first_with_its_line(attempt):
    write(attempt, 31, GATHER + ENGINE)
    write(attempt, 32, LOCKED)
    assert list(rank_lines(attempt, RANKS, [32])) == [
        "rank 1 (pid 32) holds the others up: it stands at holdfast/engine/tasks/classify.py:90 in "
        "Task.forward_backward, calling Event.wait",
        "rank 0 (pid 31) waits for the others in all_gather_into_tensor, at holdfast/engine/loop.py:153 in "
        "Loop._reduced_loss",
    ]


def test_stopped_rank_in_a_collective_is_not_a_waiter(attempt):
    write(attempt, 32, GATHER + ENGINE)
    (line,) = rank_lines(attempt, RANKS, [32])
    place = "holdfast/engine/loop.py:153 in Loop._reduced_loss"
    assert line == f"rank 1 (pid 32) holds the others up: it stands at {place}, calling all_gather_into_tensor"


def test_a_script_is_named_by_its_own_line(attempt):
    write(attempt, 31, GATHER + "    <module> (train.py:3)\n")
    write(attempt, 32, "    <module> (train.py:7)\n")
    assert list(rank_lines(attempt, RANKS, [32])) == [
        "rank 1 (pid 32) holds the others up: it stands at train.py:7",
        "rank 0 (pid 31) waits for the others in all_gather_into_tensor, at train.py:3",
    ]


def test_what_python_itself_wrote_counts_where_nothing_looked_from_outside(attempt):
    inner = "distributed/distributed_c10d.py"
    text = f'Thread 0x7f (most recent call first):\n  File "/v/site-packages/torch/{inner}", line 5 in barrier\n'
    text += '  File "/v/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper\n'
    (attempt / STACKS / "python-31.txt").write_text(text + f'  File "{attempt}/train.py", line 4 in evaluate\n')
    (line,) = rank_lines(attempt, RANKS, [])
    assert line == "rank 0 (pid 31) waits for the others in barrier, at train.py:4 in evaluate"


def looked(*standings: Standing) -> Look:
    judged = Judged(verdict=Verdict.TIMED, words="waits", standings=standings)
    because = f"30 s; {rank_words(standings, RANKS.get)}"
    numbers = {"step": 7, "steps": 9, "resident_bytes": 1, "noticed_after_seconds": 30.0, "silent_seconds": 30.0}
    return Look(phase="step", judged=judged, words="waits", is_hung=True, because=because, **numbers)


def test_rank_outside_collectives_holds_up_the_other(attempt):
    write(attempt, 31, GATHER + ENGINE)
    write(attempt, 32, LOCKED)
    alike = [Standing(pid=pid, verdict=Verdict.TIMED, words=f"waits, {pid}") for pid in RANKS]
    look = told_by_stacks(attempt, RANKS, looked(*alike))
    assert [one.pid for one in look.judged.standings] == [32, 31]
    assert look.because == (
        "30 s; rank 1 (process 32): waits, 32, and holds the others up; rank 0 (process 31): waits, 31"
    )


def test_stopped_rank_is_always_first(attempt):
    write(attempt, 31, GATHER + ENGINE)
    write(attempt, 32, LOCKED)
    look = looked(
        Standing(pid=31, verdict=Verdict.STOPPED, words="is stopped"),
        Standing(pid=32, verdict=Verdict.TIMED, words="waits"),
    )
    assert told_by_stacks(attempt, RANKS, look) == look


def test_one_process_alone_has_no_ranks(attempt):
    write(attempt, 31, GATHER + ENGINE)
    assert list(rank_lines(attempt, {}, [31])) == []


def test_single_local_rank_is_described_alone(attempt):
    write(attempt, 31, GATHER + ENGINE)
    place = "holdfast/engine/loop.py:153 in Loop._reduced_loss"
    assert list(rank_lines(attempt, {31: 1}, [])) == [
        f"rank 1 (pid 31) waits for the others in all_gather_into_tensor, at {place}"
    ]
