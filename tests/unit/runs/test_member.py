"""A machine that takes part in a run: what it does of itself when it begins again, and when it is led by nobody."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.artifacts import write_artifact
from holdfast.core.env import ATTEMPT_VARIABLE
from holdfast.core.errors import RequestError
from holdfast.core.events import Event, LeaderAwaited, Ticked
from holdfast.core.notice import NoticeWriter
from holdfast.core.records import LeaseNotice
from holdfast.core.runfolder import CHILD, LEASES, NOTICE, OUTCOME, attempt_folder, part_folder
from holdfast.runs import member as followers
from holdfast.runs.command import command_spec, make_request
from holdfast.runs.lease import describe_self
from holdfast.runs.member import _Member, follow, take_part
from holdfast.supervisor.attempt import StopRequest
from holdfast.supervisor.members import boot_id, start_ticks_of

JOB = command_spec(make_request((sys.executable, "-c", ""), nodes=2))


@pytest.fixture(autouse=True)
def name(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_NODE", "b")


@pytest.fixture
def left_over(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A rank of the first attempt, which this machine led."""
    attempt = attempt_folder(tmp_path, 1)
    attempt.mkdir(parents=True)
    variables = {**os.environ, ATTEMPT_VARIABLE: str(attempt.resolve())}
    with subprocess.Popen(["sleep", "600"], env=variables) as rank:
        child = {"pid": rank.pid, "start_ticks": start_ticks_of(rank.pid), "boot_id": boot_id()}
        write_artifact(attempt, CHILD, child)
        yield rank
        rank.kill()


def elsewhere(name: str) -> LeaseNotice:
    """The notice of a leader on another machine."""
    return replace(describe_self(LeaseNotice), node=name, machine="another", hardware="", state="held")


def lead_elsewhere(run: Path, name: str = "a") -> NoticeWriter:
    (run / LEASES / "000001").mkdir(parents=True)
    notice = NoticeWriter(run / LEASES / "000001" / NOTICE)
    notice.write(elsewhere(name))
    return notice


def test_one_ctrl_c_ends_it_when_its_leader_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(followers, "lease_seconds", lambda: 0.5)
    lead_elsewhere(tmp_path)
    stop = StopRequest()
    stop.ask(signal.SIGINT)
    told: list[Event] = []
    result = take_part(tmp_path, JOB, told.append, stop=stop)
    asked = [event for event in told if isinstance(event, LeaderAwaited)]
    assert ("a", "asked_to_stop") in [(event.leader, event.state) for event in asked]
    assert (result.state, result.exit_code) == ("stopped", 128 + signal.SIGINT)


def test_name_of_the_leader_is_refused_immediately(tmp_path):
    notice = lead_elsewhere(tmp_path, "b")
    told: list[Event] = []

    def hear(event: Event) -> None:
        told.append(event)
        notice.write(elsewhere("b"))  # the leader lives

    with pytest.raises(RequestError, match="is also called 'b'"):
        follow(tmp_path, JOB, hear, stop=StopRequest())
    assert {type(event) for event in told} <= {Ticked}


def test_leader_with_same_name_on_this_machine_is_found(tmp_path):
    lead_elsewhere(tmp_path).write(describe_self(LeaseNotice, state="held"))
    told: list[Event] = []
    with pytest.raises(RequestError, match="is also called 'b'"):
        follow(tmp_path, JOB, told.append, stop=StopRequest())
    assert not told


def test_member_does_not_restart_a_started_attempt(tmp_path):
    part = part_folder(attempt_folder(tmp_path, 3), "b")
    part.mkdir(parents=True)
    write_artifact(part, CHILD, {})
    member = _Member(tmp_path, JOB, (), StopRequest())
    assert not member._is_called(LeaseNotice(nodes=("a", "b"), attempt=3))
    assert member._is_called(LeaseNotice(nodes=("a", "b"), attempt=4))
    member.leave()


@pytest.mark.skipif(sys.platform != "linux", reason="by /proc")
def test_former_leader_ends_its_leftovers(tmp_path, left_over):
    _Member(tmp_path, JOB, (), StopRequest()).leave()
    assert left_over.poll() is None  # this attempt may be running
    write_artifact(attempt_folder(tmp_path, 1), OUTCOME, {})
    _Member(tmp_path, JOB, (), StopRequest()).leave()
    assert left_over.wait(60) == -signal.SIGTERM
