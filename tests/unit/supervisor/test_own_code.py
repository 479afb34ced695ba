"""Where the user's own program was: its line in a hang or crash, its last words, and the place of each rank."""

import json
from pathlib import Path

import pytest

from holdfast.core.event_log import EventLog
from holdfast.core.events import ExitHandlersEnded, ProgramEnded
from holdfast.core.observations import CodePlace, OwnCode, ProgramExit, RankStack, RankVerdict, Verdict
from holdfast.core.runfolder import CHILD, EVENTS, OUTPUT, STACKS
from holdfast.supervisor.own_code import find_own_code, find_program_exit, find_rank_stacks, sort_by_stacks

HEAD = 'Process 41: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 41 (idle): "MainThread"\n'
LOCK = "    0x7f3e96 (libc.so.6)\n    PyThread_acquire_lock_timed (libpython3.11.so.1.0)\n"
SOURCE = "import os\n\n\nwith lock:\n    os.abort()\ny = x @ w\n"


def child_info(cwd: Path, *command: str) -> dict[str, object]:
    return {"pid": 41, "start_ticks": 7, "cwd": str(cwd), "command": command}


@pytest.fixture
def attempt(tmp_path) -> Path:
    folder = tmp_path / "run" / "attempts" / "01"
    (folder / STACKS).mkdir(parents=True)
    (tmp_path / "train.py").write_text(SOURCE)
    (folder / CHILD).write_text(json.dumps(child_info(tmp_path, "python", "train.py")))
    return folder


def own(how: str, line: int, function: str = "", call: str = "") -> OwnCode:
    source = SOURCE.splitlines()[line - 1].strip()
    return OwnCode(how=how, place=CodePlace(file="train.py", line=line, function=function, source=source), call=call)


def hang(attempt: Path, native: str, *others: int) -> list[OwnCode]:
    (attempt / STACKS / "native-41.txt").write_text(HEAD + native)
    for pid in (41, *others):
        (attempt / STACKS / f"spy-{pid}.txt").write_text(HEAD)
    return list(find_own_code(attempt, 41, is_hung=True))


def test_own_lock_in_a_single_process(attempt):
    calls = "    save (train.py:4)\n    <module> (train.py:9)\n"
    assert hang(attempt, LOCK + calls) == [own("waits_for_own_lock", 4, "save")]
    assert hang(attempt, LOCK + calls, 42) == [own("hung", 4, "save")]  # a worker may hold it


def test_lock_via_standard_library_is_own_code(attempt):
    calls = "    wait (threading.py:320)\n    get (queue.py:171)\n    <module> (train.py:4)\n"
    assert hang(attempt, LOCK + calls) == [own("waits_for_own_lock", 4)]


def test_another_thread_that_waits_elsewhere_may_be_to_blame(attempt):
    calls = LOCK + "    <module> (train.py:4)\n"
    locked = '\nThread 44 (idle): "Thread-1"\n' + LOCK + "    run (train.py:6)\n"
    assert hang(attempt, calls + locked) == [own("waits_for_own_lock", 4)]
    stuck = '\nThread 44 (idle): "Thread-1"\n    GOMP_parallel (libgomp.so.1)\n    run (train.py:6)\n'
    assert hang(attempt, calls + stuck) == [own("hung", 4)]


def test_library_lock_is_not_the_scripts_own(attempt):
    library = "    forward (torch/nn/functional.py:12)\n    <module> (train.py:6)\n"
    assert hang(attempt, LOCK + library) == [own("hung", 6)]
    openmp = "    GOMP_parallel (libgomp.so.1)\n    <module> (train.py:6)\n"
    assert hang(attempt, openmp) == [own("hung", 6)]


def crash(attempt: Path, line: int) -> list[OwnCode]:
    stack = (
        f'Current thread 0x7f (most recent call first):\n  File "{attempt.parents[2]}/train.py", line {line} in check\n'
    )
    (attempt / STACKS / "python-41.txt").write_text(f"Fatal Python error: Aborted\n\n{stack}")
    return list(find_own_code(attempt, 41, is_hung=False))


def test_requested_abort_is_not_a_crash(attempt):
    assert crash(attempt, 5) == [own("ended_itself", 5, "check", call="os.abort()")]
    assert crash(attempt, 6) == [own("crashed", 6, "check")]


def test_nothing_is_reported_without_knowledge(attempt):
    assert list(find_own_code(attempt, 41, is_hung=True)) == []
    assert list(find_own_code(attempt, 41, is_hung=False)) == []
    installed = "    run (site-packages/lib.py:3)\n"
    assert hang(attempt, LOCK + installed) == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"message": "found\n  no rows"}, ProgramExit(message="found no rows")),
        (
            {"message": "nothing left"},
            ProgramExit(last_line="no rows"),
        ),  # never printed: the exit was caught
        ({}, ProgramExit(last_line="no rows")),
        ({"output_bytes": 0}, ProgramExit()),
        ({"output_bytes": None}, ProgramExit(last_line="tracker: find logs at x")),
        ({"has_raised": True}, None),
        ({"pid": 8}, None),  # not the process whose end is the attempt's
    ],
)
def test_message_counts_only_without_an_error(tmp_path, told, found):
    printed = "step 1\n 10%\r 20%\nfound\n no rows\n\n"
    (tmp_path / OUTPUT).write_text(f"{printed}tracker: find logs at x\n")
    events = EventLog(tmp_path / EVENTS)
    ended = {"pid": 7, "is_clean": False, "has_raised": False, "message": "", "output_bytes": len(printed)}
    events.write(ProgramEnded(**{**ended, **told}))
    assert list(find_program_exit(tmp_path, 7)) == []  # an exit handler may have ended it
    events.write(ExitHandlersEnded(pid=7))
    assert list(find_program_exit(tmp_path, 7)) == ([found] if found else [])


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"message": "no rows"}, ProgramExit(message="no rows", crashed_after="exit_handler")),
        ({}, ProgramExit(last_line="no rows", crashed_after="exit_handler")),
        ({"message": "nothing left"}, None),  # caught; how it left then is not known
        ({"is_clean": True}, None),
        ({"has_raised": True}, None),
    ],
)
def test_later_crash_is_reported_with_the_message(tmp_path, told, found):
    (tmp_path / OUTPUT).write_text("no rows\n")
    ended = {"pid": 7, "is_clean": False, "has_raised": False, "message": "", "output_bytes": 8}
    EventLog(tmp_path / EVENTS).write(ProgramEnded(**{**ended, **told}))
    assert list(find_program_exit(tmp_path, 7, has_crashed=True)) == ([found] if found else [])


GATHER = """\
    all_gather_single (torch/distributed/distributed_c10d.py:4394)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:4413)
    deprecated.__call__.<locals>.wrapper (typing_extensions.py:3140)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
"""
ENGINE = """\
    DistributedRanks.all_gather (holdfast/engine/distributed_ranks.py:142)
    StepAllReduce.agree (holdfast/engine/distributed_ranks.py:224)
    TorchSteps._reduced_loss (holdfast/engine/torch_steps.py:126)
"""
LOCKED = """\
    Event.wait (threading.py:629)
    Task.forward_backward (holdfast/engine/tasks/classify.py:90)
    TorchSteps._loss (holdfast/engine/torch_steps.py:117)
"""
RANKS = {31: 0, 32: 1}
IN_STEPS = CodePlace(file="holdfast/engine/torch_steps.py", line=126, function="TorchSteps._reduced_loss")


@pytest.fixture
def torchrun(tmp_path) -> Path:
    """An attempt of a script under torchrun."""
    (tmp_path / STACKS).mkdir()
    (tmp_path / CHILD).write_text(json.dumps(child_info(tmp_path, "torchrun", "train.py")))
    (tmp_path / "train.py").write_text("import torch\n" * 9)
    return tmp_path


def write_stack(torchrun: Path, pid: int, frames: str) -> None:
    other = 'Thread 9 (idle): "other"\n    run (x.py:1)\n'
    text = f'Process {pid}: python\n\nThread {pid} (idle): "MainThread"\n{frames}{other}'
    (torchrun / STACKS / f"spy-{pid}.txt").write_text(text)


def test_awaited_rank_comes_first_with_its_line(torchrun):
    write_stack(torchrun, 31, GATHER + ENGINE)
    write_stack(torchrun, 32, LOCKED)
    first, other = find_rank_stacks(torchrun, RANKS, [32])
    place = CodePlace(file="holdfast/engine/tasks/classify.py", line=90, function="Task.forward_backward")
    assert first == RankStack(rank=1, pid=32, place=place, call="Event.wait", holds_up=True)
    assert other == RankStack(rank=0, pid=31, place=IN_STEPS, collective="all_gather_into_tensor")


def test_stopped_rank_in_a_collective_is_not_a_waiter(torchrun):
    write_stack(torchrun, 32, GATHER + ENGINE)
    (found,) = find_rank_stacks(torchrun, RANKS, [32])
    assert found == RankStack(rank=1, pid=32, place=IN_STEPS, call="all_gather_into_tensor", holds_up=True)


def test_a_script_is_named_by_its_own_line(torchrun):
    write_stack(torchrun, 31, GATHER + "    <module> (train.py:3)\n")
    write_stack(torchrun, 32, "    <module> (train.py:7)\n")
    first, other = find_rank_stacks(torchrun, RANKS, [32])
    assert (first.rank, str(first.place), first.holds_up) == (1, "train.py:7", True)
    assert (other.rank, str(other.place), other.collective) == (0, "train.py:3", "all_gather_into_tensor")


def test_python_stacks_count_without_outside_observation(torchrun):
    inner = "distributed/distributed_c10d.py"
    text = f'Thread 0x7f (most recent call first):\n  File "/v/site-packages/torch/{inner}", line 5 in barrier\n'
    text += '  File "/v/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper\n'
    (torchrun / STACKS / "python-31.txt").write_text(text + f'  File "{torchrun}/train.py", line 4 in evaluate\n')
    (found,) = find_rank_stacks(torchrun, RANKS, [])
    assert (found.rank, found.collective, str(found.place)) == (0, "barrier", "train.py:4")
    assert found.place.function == "evaluate"


def test_rank_outside_collectives_holds_up_the_other(torchrun):
    write_stack(torchrun, 31, GATHER + ENGINE)
    write_stack(torchrun, 32, LOCKED)
    alike = [RankVerdict(pid=pid, verdict=Verdict.TIMED) for pid in RANKS]
    assert [one.pid for one in sort_by_stacks(torchrun, alike)] == [32, 31]


def test_stopped_rank_is_listed_first_wherever_its_stack_is(torchrun):
    write_stack(torchrun, 31, GATHER + ENGINE)
    write_stack(torchrun, 32, LOCKED)
    stopped, waits = RankVerdict(pid=31, verdict=Verdict.STOPPED), RankVerdict(pid=32, verdict=Verdict.TIMED)
    assert sort_by_stacks(torchrun, [stopped, waits]) == (stopped, waits)


def test_one_process_alone_has_no_ranks(torchrun):
    write_stack(torchrun, 31, GATHER + ENGINE)
    assert list(find_rank_stacks(torchrun, {}, [31])) == []


def test_single_local_rank_is_described_alone(torchrun):
    write_stack(torchrun, 31, GATHER + ENGINE)
    (found,) = find_rank_stacks(torchrun, {31: 1}, [])
    assert found == RankStack(rank=1, pid=31, place=IN_STEPS, collective="all_gather_into_tensor")
