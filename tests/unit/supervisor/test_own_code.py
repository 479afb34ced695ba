"""The line of one's own program at which it hung or crashed, from what lies in the attempt's folder."""

import json
from pathlib import Path

import pytest

from holdfast.core.runfolder import CHILD, STACKS
from holdfast.supervisor.own_code import own_lines

HEAD = 'Process 41: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 41 (idle): "MainThread"\n'
LOCK = "    0x7f3e96 (libc.so.6)\n    PyThread_acquire_lock_timed (libpython3.11.so.1.0)\n"
SOURCE = "import os\n\n\nwith lock:\n    os.abort()\ny = x @ w\n"


@pytest.fixture
def attempt(tmp_path) -> Path:
    folder = tmp_path / "run" / "attempts" / "01"
    (folder / STACKS).mkdir(parents=True)
    (tmp_path / "train.py").write_text(SOURCE)
    (folder / CHILD).write_text(json.dumps({"pid": 41, "cwd": str(tmp_path), "command": ["python", "train.py"]}))
    return folder


def hang(attempt: Path, native: str, *others: int) -> list[str]:
    (attempt / STACKS / "native-41.txt").write_text(HEAD + native)
    for pid in (41, *others):
        (attempt / STACKS / f"spy-{pid}.txt").write_text(HEAD)
    return list(own_lines(attempt, 41, is_hung=True))


def test_own_lock_in_a_single_process(attempt):
    own = "    save (train.py:4)\n    <module> (train.py:9)\n"
    assert hang(attempt, LOCK + own) == ["waits for a lock of the program's own at train.py:4 in save: with lock:"]
    assert hang(attempt, LOCK + own, 42) == ["stands at train.py:4 in save"]  # a worker may hold it


def test_lock_via_standard_library_is_own_code(attempt):
    own = "    wait (threading.py:320)\n    get (queue.py:171)\n    <module> (train.py:4)\n"
    assert hang(attempt, LOCK + own) == ["waits for a lock of the program's own at train.py:4: with lock:"]


def test_another_thread_that_waits_elsewhere_may_be_to_blame(attempt):
    own = LOCK + "    <module> (train.py:4)\n"
    assert hang(attempt, own + '\nThread 44 (idle): "Thread-1"\n' + LOCK + "    run (train.py:6)\n")[0].startswith(
        "waits"
    )
    stuck = '\nThread 44 (idle): "Thread-1"\n    GOMP_parallel (libgomp.so.1)\n    run (train.py:6)\n'
    assert hang(attempt, own + stuck) == ["stands at train.py:4"]


def test_a_lock_inside_a_library_is_not(attempt):
    library = "    forward (torch/nn/functional.py:12)\n    <module> (train.py:6)\n"
    assert hang(attempt, LOCK + library) == ["stands at train.py:6"]
    openmp = "    GOMP_parallel (libgomp.so.1)\n    <module> (train.py:6)\n"
    assert hang(attempt, openmp) == ["stands at train.py:6"]


def crash(attempt: Path, line: int) -> list[str]:
    stack = (
        f'Current thread 0x7f (most recent call first):\n  File "{attempt.parents[2]}/train.py", line {line} in check\n'
    )
    (attempt / STACKS / "python-41.txt").write_text(f"Fatal Python error: Aborted\n\n{stack}")
    return list(own_lines(attempt, 41, is_hung=False))


def test_requested_abort_is_not_a_crash(attempt):
    assert crash(attempt, 5) == ["ended itself at train.py:5 in check: os.abort()"]
    assert crash(attempt, 6) == ["crashed at train.py:6 in check"]


def test_nothing_is_reported_without_knowledge(attempt):
    assert list(own_lines(attempt, 41, is_hung=True)) == []
    assert list(own_lines(attempt, 41, is_hung=False)) == []
    installed = "    run (site-packages/lib.py:3)\n"
    assert hang(attempt, LOCK + installed) == []
