"""`holdfast run --nodes 2`: two machines share a run's folder; one rank, one supervisor or one machine fails."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core import events as ev
from holdfast.core.records import Interruption, Outcome
from holdfast.core.runfolder import OUTPUT, part_folder
from holdfast.runs.cause_wording import outcome_text
from holdfast.runs.event_wording import event_lines
from holdfast.runs.state import read_state
from tests.lab.supervised import LIMIT_SECONDS
from tests.lab.together import Together

pytestmark = pytest.mark.lab


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Together]:
    pair = Together(tmp_path)
    yield pair
    pair.close()


@pytest.fixture
def finished_row(lab_row: Callable[..., None]) -> Callable[..., None]:
    """A line of the table for a fault that the run survived."""

    def write(fault: str, together: Together, first: Outcome | None = None, task: str = "two machines") -> None:
        lab_row(
            fault=fault,
            phase="step",
            task=task,
            noticed_after_seconds=first.noticed_after_seconds if first else None,
            named=first.diagnosis if first else "interrupted",
            finished=True,
            identical=together.has_learned_the_same,
        )

    return write


def test_remote_kill_is_named_and_both_machines_restart(together, finished_row):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    process = together.rank_of("b", 25)
    shown = {node.name: node.state for node in read_state(together.run).nodes}
    os.kill(process, signal.SIGKILL)
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert shown == {"a": "leads", "b": "takes part"}
    for number, words in ((1, "met from step 0"), (2, "met from step ")):
        for part in (done.attempt(number), part_folder(done.attempt(number), "b")):
            assert words in (part / OUTPUT).read_text()
    first = done.outcomes[0]
    finished_row("process killed on another machine", together, first)
    assert first.diagnosis == "process-killed"
    assert first.cause.node == "b"
    assert [one.outcome for one in done.outcomes] == ["died", "finished"]
    assert together.has_learned_the_same


@pytest.mark.full
def test_rank_killed_on_another_machine_is_named(together, finished_row):
    together.is_light = False
    together.start_both()
    os.kill(together.rank_of("b", 25), signal.SIGKILL)
    done = together.finish()
    assert done.exit_code == 0, done.output
    first = done.outcomes[0]
    finished_row("rank killed on another machine", together, first, task="torchrun, two machines")
    assert first.diagnosis == "process-killed"
    assert first.cause.node == "b"
    assert "rank " in outcome_text(first)
    assert together.has_learned_the_same


@pytest.mark.full
def test_a_rank_stopped_on_another_machine_is_noticed_there(together, finished_row):
    together.is_light = False
    together.start_both()
    os.kill(together.rank_of("b", 25), signal.SIGSTOP)
    done = together.finish()
    assert done.exit_code == 0, done.output
    first = done.outcomes[0]
    same = together.has_learned_the_same
    finished_row("rank stopped on another machine", together, first, task="torchrun, two machines")
    assert first.outcome == "hung"
    assert first.diagnosis == "process-stopped"
    assert first.cause.node == "b"
    assert same


@pytest.mark.full
@pytest.mark.parametrize("waits", [True, False])
def test_killed_remote_supervisor_is_missed_and_may_return(together, finished_row, waits):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("b", 15)
    together.machines["b"].kill()
    together.machines["b"].wait()
    if waits:
        together.wait_until(lambda: together.reported(ev.AttemptEnded), "b was never missed")
    together.start("b")
    done = together.finish()
    assert done.exit_code == 0, done.output
    first = done.outcomes[0]
    same = together.has_learned_the_same
    finished_row("supervisor killed on another machine", together)
    assert first.interruption.kind == ("not_heard_from" if waits else "supervisor_restarted")
    assert first.interruption.nodes == ("b",)
    assert first.is_external
    assert same


@pytest.mark.full
def test_other_machine_leads_after_the_leader_is_killed(together, finished_row):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("a", 15)
    together.machines["a"].kill()
    together.machines["a"].wait()
    together.wait_until(lambda: together.leader == "b", "nobody took over")
    together.start("a")
    done = together.finish()
    assert done.exit_code == 0, done.output
    same = together.has_learned_the_same
    finished_row("leading supervisor killed", together)
    assert {event.leader for event in together.reported(ev.LeaderLost)} == {"a"}
    assert "b" in {event.leader for event in together.reported(ev.LeaderAwaited)}
    assert [one.outcome for one in done.outcomes] == ["interrupted", "finished"]
    assert same


@pytest.mark.full
def test_missing_machine_is_reported_after_waiting(together):
    together.wait_seconds = 10
    machine = together.start("a")
    assert machine.wait(LIMIT_SECONDS) == 3
    assert {(*event.present, event.wanted) for event in together.reported(ev.MachinesAwaited)} == {("a", 2)}
    assert not (together.run / "attempts").exists()


@pytest.mark.full
def test_leaving_machine_saves_and_may_return(together):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("b", 15)
    together.machines["b"].send_signal(signal.SIGTERM)
    assert together.machines["b"].wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
    together.start("b")
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert done.outcomes[0].interruption == Interruption(kind="asked_to_leave", nodes=("b",))
    assert together.has_learned_the_same


@pytest.mark.full
@pytest.mark.parametrize(("machine", "number"), [("a", signal.SIGTERM), ("b", signal.SIGINT)])
def test_stop_on_leader_stops_all_and_commands_resume(together, machine, number):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("a", 15)
    together.machines[machine].send_signal(number)
    stopped = together.finish()
    assert stopped.exit_code == 128 + number, stopped.output
    assert stopped.result["state"] == "stopped"
    together.start_both()
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert together.has_learned_the_same


@pytest.mark.full
def test_ctrl_c_before_all_are_there_ends_those_that_wait(together):
    together.nodes = 3
    together.start_both()
    together.wait_until(
        lambda: any(event.present == ["a", "b"] for event in together.reported(ev.MachinesAwaited)), "b was not seen"
    )
    together.machines["b"].send_signal(signal.SIGINT)
    assert together.finish().exit_code == 128 + signal.SIGINT


@pytest.mark.full
def test_lost_machine_is_reported_within_the_lease(together):
    together.variables["PAUSE"] = "0.1"
    together.wait_seconds = 10
    together.start_both()
    rank = together.rank_of("b", 15)
    together.machines["b"].kill()
    os.kill(rank, signal.SIGKILL)
    assert together.machines["a"].wait(LIMIT_SECONDS) == 3, together.said("a")
    causes = [event.cause for event in together.reported(ev.AttemptEnded)]
    assert [(cause.kind, cause.nodes) for cause in causes] == [("not_heard_from", ("b",))]
    assert together.reported(ev.MachinesAwaited)[-1].present == ["a"]


@pytest.mark.full
def test_frozen_leader_loses_the_run_and_rejoins(together):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("a", 15)
    together.machines["a"].send_signal(signal.SIGSTOP)
    together.wait_until(lambda: together.leader == "b", "nobody took over")
    together.machines["a"].send_signal(signal.SIGCONT)
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert "b" in {event.leader for event in together.reported(ev.LeaderAwaited)}
    assert together.has_learned_the_same


@pytest.mark.full
def test_machine_with_another_command_is_refused(together):
    together.start("a")
    together.wait_until(lambda: together.leader == "a", "nobody took the lead")
    other = together.start("b", "--another-option")
    assert other.wait(LIMIT_SECONDS) == 2
    assert "--another-option" in together.said("b")
    together.start("b")
    assert together.finish().exit_code == 0


@pytest.mark.full
def test_lost_storage_is_reported_and_waited_for(together):
    together.variables["PAUSE"] = "0.4"
    together.start_both()
    together.rank_of("b", 15)
    together.run.rename(together.folder / "away")
    trouble = _line(ev.StorageTrouble(error="")).removesuffix(": ")
    together.wait_until(lambda: trouble in together.said("a"), "the leader said nothing")
    together.wait_until(lambda: trouble in together.said("b"), "the follower said nothing")
    (together.folder / "away").rename(together.run)
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert _line(ev.StorageRestored()) in together.said("a")
    assert together.has_learned_the_same


@pytest.mark.full
def test_two_machines_of_one_name_are_refused(together):
    together.start("a")
    together.wait_until(lambda: together.leader == "a", "nobody took the lead")
    first = together.machines["a"]
    second = together.start("a")
    assert second.wait(LIMIT_SECONDS) == 2
    assert "HOLDFAST_NODE=" in together.said("a")
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM


def _line(event: ev.Event) -> str:
    """How a command prints an event."""
    return event_lines(event)[0].text
