"""Who left first, from how each process of a tree ended."""

import json
import signal

import pytest

from holdfast.supervisor.child_exits import ChildExit
from holdfast.supervisor.ends import Ends, rank_exit_code, read_ranks

RANKS = {31: 0, 32: 1}


def end(pid: int, at: float, code: int | None = None, number: int | None = None, name: str = "python3") -> ChildExit:
    return ChildExit(pid=pid, name=name, at_seconds=at, code=code, signal=number)


def test_killed_rank_comes_before_its_fallout():
    ends = Ends([end(31, 5.0, code=1), end(32, 5.0, number=signal.SIGKILL)], RANKS, root_pid=30)
    assert list(ends.lines()) == [
        "rank 1 (pid 32) ended by signal SIGKILL (pidfd), before the other ranks",
        "rank 0 (pid 31) ended by code 1 (pidfd)",
    ]
    assert ends.killed() == "rank 1 (pid 32)"


def test_quietly_lost_rank_is_named_not_its_victim():
    ends = Ends([end(31, 5.0, code=1), end(32, 5.0, code=0)], RANKS, root_pid=30)
    assert next(ends.lines()) == "rank 1 (pid 32) ended by code 0 (pidfd), while other ranks were at work"
    assert ends.killed() == ""


def test_ranks_that_the_launcher_ended_come_last():
    ends = Ends([end(31, 5.0, number=signal.SIGTERM), end(32, 5.0, code=1)], RANKS, root_pid=30)
    assert next(ends.lines()).startswith("rank 1 (pid 32) ended by code 1")


def test_finished_ranks_are_not_reported():
    assert list(Ends([end(31, 5.0, code=0), end(32, 6.0, code=0)], RANKS, root_pid=30).lines()) == []


def test_killed_loader_worker_is_reported_by_its_own_hazard():
    ends = Ends([end(40, 5.0, number=signal.SIGKILL, name="pt_data_worker")], {}, root_pid=30)
    assert list(ends.lines()) == ["worker pid 40 (pt_data_worker) ended by signal SIGKILL (pidfd)"]
    assert ends.killed() == ""


def test_successful_helpers_are_not_reported():
    assert list(Ends([end(40, 5.0, code=0), end(30, 6.0, code=1)], {}, root_pid=30).lines()) == []


def test_ranks_are_read_from_process_events(tmp_path):
    events = [{"event": "rank", "pid": 31, "rank": 0}, {"event": "log", "pid": 31}, {"event": "rank", "pid": "x"}]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    assert read_ranks(tmp_path) == {31: 0}


def test_single_process_is_not_a_rank(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "rank", "pid": 31, "rank": 0, "world_size": 1}\n')
    assert read_ranks(tmp_path) == {}


@pytest.mark.parametrize(("how", "code"), [({"number": signal.SIGKILL}, -9), ({"code": 143}, 143)])
def test_rank_end_is_described_across_machines(tmp_path, how, code):
    (tmp_path / "events.jsonl").write_text('{"event": "rank", "pid": 31, "rank": 1, "world_size": 2}\n')
    assert rank_exit_code([end(31, 5.0, **how), end(30, 6.0, code=1)], tmp_path, 30) == code
