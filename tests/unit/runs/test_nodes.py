"""Who takes part in a run, as its folder tells anybody who asks."""

import pytest
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.notice import NoticeWriter
from holdfast.core.records import (
    AttemptStart,
    CommandRequest,
    SupervisorNotice,
    read_request,
    write_record,
    write_request,
)
from holdfast.core.runfolder import (
    BEAT,
    CHILD,
    EVENTS,
    LEASES,
    NODES,
    NOTICE,
    attempt_folder,
    part_folder,
)
from holdfast.core.settings import TrainRequest, requested_batch_size
from holdfast.runs import nodes, resume_run
from holdfast.runs.lease import describe_self, hold
from holdfast.runs.nodes import read_leader
from holdfast.runs.resume_run import ask_for, ask_to_stop
from holdfast.runs.state import RunReader, read_state


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_NODE", "a")
    write_request(tmp_path, CommandRequest(command=("torchrun", "train.py"), cwd=".", nodes=2))
    attempt = attempt_folder(tmp_path, 1)
    for name, folder, step in (("a", attempt, 31), ("b", part_folder(attempt, "b"), 30)):
        (tmp_path / NODES / name).mkdir(parents=True)
        folder.mkdir(parents=True)
        BeatWriter(folder / BEAT).enter("step", step, 60)
        write_artifact(folder, CHILD, {})
    write_record(attempt, AttemptStart(number=1))
    return tmp_path


def say(run, path: str, **said: object) -> None:
    (run / path).mkdir(parents=True, exist_ok=True)
    NoticeWriter(run / path / NOTICE).write(replace(describe_self(SupervisorNotice), **said))


def states(run) -> dict[str, str]:
    return {node.name: node.state for node in read_state(run).nodes}


def test_both_machines_are_shown_with_their_steps(run):
    say(run, f"{NODES}/b", state="here")
    with hold(run):
        nodes = read_state(run).nodes
    assert [(node.name, node.state, node.step) for node in nodes] == [("a", "leads", 31), ("b", "takes part", 30)]


def test_waiting_run_lists_the_machines_that_joined(run):
    log, waiting = EventLog(run / EVENTS), ev.MachinesAwaited(present=["a"], wanted=2, seconds_left=60.0)
    log.write(ev.StageStarted(stage="prove"))
    log.write(waiting)
    log.write(ev.StorageTrouble(error="No space left on device"))
    with hold(run):
        state = read_state(run)
        assert (state.state, state.phase, state.waiting.present) == ("waiting", "", ["a"])
        log.write(ev.AttemptStarted(number=2))
        assert read_state(run).state == "training"
    log.write(waiting)
    assert read_state(run).state == "stopped"  # nobody waits any more
    log.write(ev.StageStarted(stage="prove"))
    with hold(run):
        assert read_state(run).waiting is None  # the next one plans first


def test_only_a_moving_notice_counts_as_a_leader(run, monkeypatch):
    beats = iter(range(100))
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: next(beats) and say(run, f"{LEASES}/000001", **other))
    other = {"node": "b", "machine": "another", "hardware": "", "state": "held"}
    say(run, f"{LEASES}/000001", **other)
    assert read_leader(run).node == "b"
    assert read_state(run).state == "training"
    assert states(run) == {"a": "silent", "b": "leads"}
    with pytest.raises(RequestError, match="led by a supervisor on another machine"):
        ask_to_stop(run, at_once=False, wait_seconds=1)
    write_request(run, TrainRequest(data="rows.csv", processes=1))
    with pytest.raises(RequestError, match=r"is running, with supervisor \d+ on b"):
        ask_for(run, {"processes": "2"})
    assert read_request(run).processes == 1
    ask_for(run, {"processes": "1", "nodes": "1"})  # as it is: the machine that says so joins


def test_machines_and_processes_may_change_between_supervisors(run):
    with pytest.raises(RequestError, match="--nodes 3 is for runs of holdfast train"):
        ask_for(run, {"nodes": "3"})
    write_request(run, TrainRequest(data="rows.csv", processes=2))
    with pytest.raises(RequestError) as refused:
        ask_for(run, {"nodes": "0"})
    assert (refused.value.setting, refused.value.problems[0].value) == ("nodes", "0")
    ask_for(run, {"processes": "1", "nodes": "3"})
    asked = read_request(run)
    assert (asked.processes, asked.nodes, asked.data) == (1, 3, "rows.csv")


def test_other_processes_share_the_same_batch(run):
    write_request(
        run, TrainRequest(data="x", processes=2, per_device_train_batch_size=8, gradient_accumulation_steps=3)
    )
    ask_for(run, {"processes": "4"})
    asked = read_request(run)
    assert (asked.processes, asked.batch_size, requested_batch_size(asked)) == (4, 48, 48)


def test_conflicting_requests_of_two_machines_are_refused(run, monkeypatch):
    def meanwhile(run) -> None:
        write_request(run, TrainRequest(data="rows.csv", nodes=3))

    monkeypatch.setattr(resume_run, "read_leader", meanwhile)
    write_request(run, TrainRequest(data="rows.csv"))
    with pytest.raises(RequestError, match="something other than --nodes 2") as refused:
        ask_for(run, {"nodes": "2"})
    assert refused.value.found == "--nodes 3"
    ask_for(run, {"processes": "2", "nodes": "3"})
    asked = read_request(run)
    assert (asked.processes, asked.nodes) == (2, 3)


def test_unchanged_notice_has_no_owner(run, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: float(next(clock)))
    say(run, f"{LEASES}/000001", node="b", machine="another", hardware="", state="held")
    assert read_leader(run) is None
    assert read_state(run).state == "stopped"


def test_a_page_does_not_wait_for_another_machine(run, monkeypatch):
    """A web request has looked once, and answers at once; a later look knows better."""
    clock = [100.0]
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: pytest.fail("waited"))
    monkeypatch.setattr(nodes.time, "monotonic", lambda: clock[0])
    say(run, f"{LEASES}/000001", node="b", machine="another", hardware="", state="held")
    reader = RunReader(run)
    assert (reader.read().is_supervised, reader.is_sure) == (True, False)
    clock[0] += 7.0
    assert (reader.read().is_supervised, reader.is_sure) == (False, True)


def test_released_lease_counts_as_left(run):
    say(run, f"{NODES}/b", node="b", state="left")
    with hold(run):
        pass
    assert states(run) == {"a": "left", "b": "left"}
