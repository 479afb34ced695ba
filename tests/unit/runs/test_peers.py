"""What the machine that leads does while its own part is over and another machine's is not."""

import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.errors import MachineError
from holdfast.core.events import Event, MachinesAwaited, Working
from holdfast.core.notice import NoticeWriter, read_notice
from holdfast.core.records import Interruption, LeaseNotice, MemberNotice, Outcome
from holdfast.core.runfolder import LEASES, NODES, NOTICE, OUTPUT, attempt_folder
from holdfast.runs import peers as peer_module
from holdfast.runs.lease import describe_self, take_lease
from holdfast.runs.peers import Peers
from holdfast.runs.stop_signals import AtOnce, Stopped
from holdfast.supervisor.attempt import NOTHING, StopRequest
from holdfast.supervisor.child import Launch


class Other:
    """Machine b, which says something whenever the leader has looked."""

    def __init__(self, run: Path):
        self._run = run
        (run / NODES / "b").mkdir(parents=True)
        self._notice = NoticeWriter(run / NODES / "b" / NOTICE)
        self.said = replace(describe_self(MemberNotice), node="b", machine="another", state="here")
        self.ends_as = "stopped"
        self.hears = ""

    def __call__(self, event: Event) -> None:
        lease = read_notice(self._run / LEASES / "000001" / NOTICE, LeaseNotice)
        self.hears = lease.said.end if lease else ""
        if self.hears == "stop":
            self.said = replace(self.said, outcome=Outcome(number=1, outcome=self.ends_as))
        self._notice.write(self.said)


@pytest.fixture
def other(tmp_path, monkeypatch) -> Other:
    monkeypatch.setenv("HOLDFAST_NODE", "a")
    monkeypatch.setattr(peer_module, "_LOOK_SECONDS", 0.01)
    return Other(tmp_path)


@pytest.mark.parametrize("ends_as", ["stopped", "finished"])
@pytest.mark.parametrize(
    ("here", "there", "whole"),
    [(signal.SIGTERM, None, "stopped"), (None, signal.SIGINT, "stopped"), (None, signal.SIGTERM, "interrupted")],
)
def test_stop_is_noticed_while_only_another_part_runs(tmp_path, other, here, there, whole, ends_as):
    lease, stop = take_lease(tmp_path), StopRequest()
    peers = Peers(tmp_path, 2, lease)
    assert peers.gather(other, stop)
    attempt = attempt_folder(tmp_path, 1)
    attempt.mkdir(parents=True)
    peers.call(1, {}, False, Launch(("true",), tmp_path, {}, attempt))
    other.said = replace(other.said, attempt=1, outcome=None, asks=there and int(there))
    other.ends_as = ends_as
    if here:
        stop.ask(here)
    outcome, _ = peers.settle(Outcome(number=1, outcome="finished"), NOTHING, other, stop)
    lease.close()
    assert other.hears == "stop"
    assert outcome.outcome == (whole if ends_as == "stopped" else "finished")
    assert stop.is_asked == (whole == "stopped")
    left = Interruption(kind="asked_to_leave", nodes=("b",))
    assert outcome.interruption == (left if outcome.outcome == "interrupted" else None)


def test_ctrl_c_elsewhere_is_heard_while_this_machine_plans(tmp_path, other):
    lease = take_lease(tmp_path)
    hear = Peers(tmp_path, 2, lease).interrupting(AtOnce())
    other.said = replace(other.said, asks=int(signal.SIGINT))

    def plan() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            hear(Working(what="planning"))
            other(Working(what="planning"))
            time.sleep(0.02)

    with pytest.raises(Stopped):
        plan()
    lease.close()


def test_each_joining_machine_is_reported(tmp_path, other, monkeypatch):
    monkeypatch.setattr(peer_module, "_SAY_FIRST_SECONDS", 0.0)
    lease, told, stop = take_lease(tmp_path), [], StopRequest()

    def report(event: Event) -> None:
        other(event)
        told.extend([event.present] if isinstance(event, MachinesAwaited) else ())
        if len(told) == 2:
            stop.ask(signal.SIGTERM)

    assert not Peers(tmp_path, 3, lease).gather(report, stop)
    lease.close()
    assert told == [["a"], ["a", "b"]]


def test_run_with_missing_machines_can_be_resumed(tmp_path, other):
    lease = take_lease(tmp_path)
    with pytest.raises(MachineError, match="1 machine of 2 did not join") as refused:
        Peers(tmp_path, 2, lease, wait_seconds=-1).gather(other, StopRequest())
    lease.close()
    assert f"holdfast resume {tmp_path}" in refused.value.try_next[0]


@pytest.mark.parametrize(
    ("between", "last"),
    [
        ((), (3, False, "unknown")),
        ((2,), (1, True, "unknown")),  # it was not twice in a row
    ],
)
def test_second_failed_rendezvous_mentions_the_address(tmp_path, other, monkeypatch, between, last):
    monkeypatch.setenv("HOLDFAST_NODE_ADDRESS", "10.9.8.7")
    lease = take_lease(tmp_path)
    peers = Peers(tmp_path, 2, lease)
    assert peers.gather(other, StopRequest())
    ends = []
    for number in (1, *between, 3):
        attempt = attempt_folder(tmp_path, number)
        attempt.mkdir(parents=True)
        unmet = "torch.distributed.DistNetworkError: The client socket has timed out after 300 s\n"
        (attempt / OUTPUT).write_text("" if number in between else unmet)
        launch = peers.call(number, {}, False, Launch(("torchrun",), tmp_path, {}, attempt, is_of_ranks=True))
        assert (launch.environment["PET_MASTER_ADDR"], launch.environment["PET_NODE_RANK"]) == ("10.9.8.7", "0")
        died = Outcome(number=number, outcome="died", exit_code=1, diagnosis="nccl-timeout", confidence="likely")
        if number in between:
            died = Outcome(number=number, outcome="interrupted")
        other.said = replace(other.said, attempt=number, outcome=Outcome(number=number, outcome="interrupted"))
        ends.append(peers.settle(died, NOTHING, other, StopRequest())[0])
    lease.close()
    assert (ends[0].interruption.kind, ends[0].interruption.host) == ("unreachable", "10.9.8.7")
    told = [(one.exit_code, one.is_external, one.diagnosis) for one in ends]
    assert (told[0], told[-1]) == ((1, True, "unknown"), last)  # the first time it was chance, perhaps
