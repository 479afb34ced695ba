"""Who left first, from how each process of a tree ended."""

import json
import signal

import pytest

from holdfast.core.observations import ExitStatus
from holdfast.supervisor.child_exits import ChildExit, ExitOrder, rank_exit_code, read_ranks

RANKS = {31: 0, 32: 1}


def end(pid: int, at: float, code: int | None = None, number: int | None = None, name: str = "python3") -> ChildExit:
    return ChildExit(pid=pid, name=name, at_seconds=at, code=code, signal=number)


def test_killed_rank_comes_before_its_fallout():
    ends = ExitOrder([end(31, 5.0, code=1), end(32, 5.0, number=signal.SIGKILL)], RANKS, root_pid=30)
    first, echo = ends.observations()
    assert (first.rank, first.status, first.is_first) == (1, ExitStatus(signal="SIGKILL"), True)
    assert (echo.rank, echo.status, echo.is_first) == (0, ExitStatus(code=1), False)
    assert ends.killed() == first


def test_quietly_lost_rank_is_named_not_its_victim():
    ends = ExitOrder([end(31, 5.0, code=1), end(32, 5.0, code=0)], RANKS, root_pid=30)
    first = next(ends.observations())
    assert (first.rank, first.status, first.is_first) == (1, ExitStatus(code=0), True)
    assert ends.killed() is None


def test_ranks_that_the_launcher_ended_come_last():
    ends = ExitOrder([end(31, 5.0, number=signal.SIGTERM), end(32, 5.0, code=1)], RANKS, root_pid=30)
    first = next(ends.observations())
    assert (first.rank, first.status) == (1, ExitStatus(code=1))


def test_finished_ranks_are_not_reported():
    assert list(ExitOrder([end(31, 5.0, code=0), end(32, 6.0, code=0)], RANKS, root_pid=30).observations()) == []


def test_killed_loader_worker_is_reported_by_its_own_hazard():
    ends = ExitOrder([end(40, 5.0, number=signal.SIGKILL, name="pt_data_worker")], {}, root_pid=30)
    (worker,) = ends.observations()
    assert (worker.pid, worker.is_loader_worker, worker.status) == (40, True, ExitStatus(signal="SIGKILL"))
    assert ends.killed() is None


def test_successful_helpers_are_not_reported():
    assert list(ExitOrder([end(40, 5.0, code=0), end(30, 6.0, code=1)], {}, root_pid=30).observations()) == []


def test_ranks_are_read_from_process_events(tmp_path):
    events = [
        {"event": "rank_started", "pid": 31, "rank": 0},
        {"event": "logged", "pid": 31},
        {"event": "rank_started", "pid": "x"},
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    assert read_ranks(tmp_path) == {31: 0}


def test_single_process_is_not_a_rank(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "rank_started", "pid": 31, "rank": 0, "world_size": 1}\n')
    assert read_ranks(tmp_path) == {}


@pytest.mark.parametrize(("how", "code"), [({"number": signal.SIGKILL}, -9), ({"code": 143}, 143)])
def test_rank_end_is_described_across_machines(tmp_path, how, code):
    (tmp_path / "events.jsonl").write_text('{"event": "rank_started", "pid": 31, "rank": 1, "world_size": 2}\n')
    assert rank_exit_code([end(31, 5.0, **how), end(30, 6.0, code=1)], tmp_path, 30) == code
