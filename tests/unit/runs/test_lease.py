"""Which machine leads a run: one at a time, and nobody waits for who is known to be gone."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.notice import NoticeWriter, read_notice
from holdfast.core.records import LeaseNotice
from holdfast.core.runfolder import LEASES, NOTICE
from holdfast.runs import lease as leases
from holdfast.runs.lease import AlreadyHeld, Lease, LostLease, describe_self, hold, holder, is_here_and_gone, take_lease
from holdfast.supervisor.clocks import Clocks


def describe_other(**fields) -> LeaseNotice:
    return replace(describe_self(LeaseNotice), **fields)


def leave(run, **said):
    """A lease as another supervisor left it."""
    folder = run / LEASES / "000001"
    folder.mkdir(parents=True)
    NoticeWriter(folder / NOTICE).write(describe_other(state="held", **said))


def test_released_lease_is_followed_by_the_next(tmp_path):
    take_lease(tmp_path).close(exit_code=7)
    second = take_lease(tmp_path)
    second.close()
    assert second.number == 2
    assert read_notice(tmp_path / LEASES / "000001" / NOTICE, LeaseNotice).said.exit_code == 7


def test_local_supervisor_is_named_without_waiting(tmp_path):
    with hold(tmp_path), pytest.raises(AlreadyHeld) as refused:
        take_lease(tmp_path)
    assert "pid " in refused.value.found
    assert holder(tmp_path) is None


def test_locally_killed_supervisor_is_not_awaited(tmp_path):
    leave(tmp_path, start_ticks=1)
    taken = take_lease(tmp_path, is_stopped=lambda: True)
    taken.close()
    assert taken.number == 2


def test_one_of_another_machine_may_live_and_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_NODE", "here")
    leave(tmp_path, node="elsewhere")
    with pytest.raises(AlreadyHeld, match="whether elsewhere still owns this run"):
        take_lease(tmp_path, is_stopped=lambda: True)


def test_processes_before_a_reboot_are_gone(monkeypatch):
    monkeypatch.setattr(leases, "_hardware_id", lambda: "box 1234")
    before = describe_other(machine="an earlier start")
    assert is_here_and_gone(before)
    assert not is_here_and_gone(replace(before, hardware="another 99"))
    monkeypatch.setattr(leases, "_hardware_id", lambda: "")  # in a container
    assert not is_here_and_gone(replace(before, hardware=""))


@pytest.fixture
def clock(monkeypatch):
    """What the machine's clock shows."""
    now = [1000.0]
    monkeypatch.setattr(leases, "read_clocks", lambda: Clocks(now[0], now[0]))
    return now


def test_silent_leader_loses_the_run_to_another(tmp_path, clock):
    lease = take_lease(tmp_path)
    (tmp_path / LEASES / "000002").mkdir()
    clock[0] += 1
    lease.say(attempt=1)
    assert not lease.is_lost
    clock[0] += 1000
    lease.say(attempt=2)
    assert lease.is_lost
    lease.close()
    assert read_notice(tmp_path / LEASES / "000001" / NOTICE, LeaseNotice).said.attempt == 1
    assert not (tmp_path / LEASES / "000002" / NOTICE).exists()


def test_silent_leader_renews_if_nobody_took_over(tmp_path, clock):
    lease: Lease = take_lease(tmp_path)
    clock[0] += 1000
    lease.say(attempt=1)
    assert (lease.is_lost, lease.number) == (False, 2)
    lease.close()
    assert read_notice(tmp_path / LEASES / "000002" / NOTICE, LeaseNotice).said.state == "released"


def test_write_that_finally_completed_counts_as_silence(tmp_path, clock, monkeypatch):
    lease = take_lease(tmp_path)

    def hang(writer, said):
        clock[0] += 1000
        write(writer, said)

    write = NoticeWriter.write
    with monkeypatch.context() as slow:
        slow.setattr(NoticeWriter, "write", hang)
        lease.say(attempt=1)
    assert not lease.is_lost
    (tmp_path / LEASES / "000002").mkdir()  # by another machine, meanwhile
    lease.say(attempt=2)
    assert lease.is_lost
    lease.close()


def test_slowly_created_lease_may_already_be_lost(tmp_path, clock, monkeypatch):
    def hang(folder, *words, **named):
        make(folder, *words, **named)
        clock[0] += 1000

    make = Path.mkdir
    with monkeypatch.context() as slow:
        slow.setattr(Path, "mkdir", hang)
        lease = take_lease(tmp_path)
    (tmp_path / LEASES / "000002").mkdir()
    lease.say(attempt=1)
    assert lease.is_lost
    lease.close()


def test_leader_check_reads_the_storage(tmp_path, clock):
    lease = take_lease(tmp_path)
    lease.require()
    (tmp_path / LEASES / "000002").mkdir()
    clock[0] += 1000
    with pytest.raises(LostLease, match="another machine has taken over this run"):
        lease.require()
    lease.close()
