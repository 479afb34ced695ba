"""What the loop over attempts decides without starting one."""

import sys

import pytest

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import MachineError
from holdfast.core.records import Outcome
from holdfast.core.runfolder import LEASES, RESULT, attempt_folder
from holdfast.runs import lease as leases
from holdfast.runs.command import command_spec, make_request
from holdfast.runs.lease import LostLease, holder, take_lease
from holdfast.runs.supervise import step_floor_seconds, supervise
from holdfast.supervisor.budgets import STEP_FLOOR_SECONDS
from holdfast.supervisor.clocks import Clocks


def given_up(slug: str) -> Outcome:
    return Outcome(number=1, outcome="hung", exit_code=None, phase="step", step_reached=7, steps=9, diagnosis=slug)


def test_busy_step_budget_grows_after_giving_up():
    assert step_floor_seconds([]) == STEP_FLOOR_SECONDS
    assert step_floor_seconds([given_up("busy-livelock")]) == 4 * STEP_FLOOR_SECONDS
    assert step_floor_seconds([given_up("busy-livelock")] * 9) == 3600


def test_deadlock_gets_no_extra_time():
    assert step_floor_seconds([given_up("dataloader-deadlock")]) == STEP_FLOOR_SECONDS


def test_full_disk_ends_a_run_and_releases_it(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.runs.supervise.read_earlier", refuse)
    (tmp_path / "request.json").touch()
    with pytest.raises(MachineError, match="cannot write") as refused:
        supervise(tmp_path, command_spec(make_request((sys.executable, "-c", ""))))
    assert " free of " in refused.value.found
    assert refused.value.action.command == f"holdfast resume {tmp_path}"
    assert holder(tmp_path) is None


def test_run_taken_by_another_machine_is_not_touched(tmp_path, monkeypatch):
    lease = take_lease(tmp_path)
    (tmp_path / LEASES / "000002").mkdir()
    monkeypatch.setattr(leases, "read_clocks", lambda: Clocks(1e11, 1e11))
    attempt_folder(tmp_path, 1).mkdir(parents=True)  # which runs there
    write_artifact(tmp_path, RESULT, {"state": "finished"})
    with pytest.raises(LostLease):
        supervise(tmp_path, command_spec(make_request((sys.executable, "-c", ""))), lease=lease)
    lease.close()
    assert (tmp_path / RESULT).exists()
    assert [path.name for path in (tmp_path / "attempts").rglob("*")] == ["01"]
