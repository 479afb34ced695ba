"""`holdfast run --nodes 2`: two machines share a run's folder; one rank, one supervisor or one machine fails."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.supervised import weights
from tests.lab.together import Together, unbroken_weights

pytestmark = pytest.mark.lab


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Together]:
    pair = Together(tmp_path)
    yield pair
    pair.close()


def test_a_rank_killed_on_another_machine_is_named_and_both_begin_anew(together, lab_row):
    together.start_both()
    os.kill(together.rank_of("b", 25), signal.SIGKILL)
    done = together.finish()
    assert done.exit_code == 0, done.output
    first = done.outcomes[0]
    same = weights(together.output) == unbroken_weights()
    lab_row(
        fault="rank killed on another machine",
        phase="step",
        task="torchrun, two machines",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert first.diagnosis == "process-killed"
    assert "on b" in first.sentence
    assert "rank " in first.sentence
    assert [one.outcome for one in done.outcomes] == ["died", "finished"]
    assert same


@pytest.mark.full
def test_a_rank_stopped_on_another_machine_is_noticed_there(together, lab_row):
    together.start_both()
    os.kill(together.rank_of("b", 25), signal.SIGSTOP)
    done = together.finish()
    assert done.exit_code == 0, done.output
    first = done.outcomes[0]
    same = weights(together.output) == unbroken_weights()
    lab_row(
        fault="rank stopped on another machine",
        phase="step",
        task="torchrun, two machines",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert first.outcome == "hung"
    assert first.diagnosis == "process-stopped"
    assert first.sentence.startswith("on b: ")
    assert same


@pytest.mark.full
def test_a_supervisor_killed_on_another_machine_is_missed_and_may_come_back(together, lab_row):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("b", 15)
    together.machines["b"].kill()
    together.machines["b"].wait()
    together.wait_until(lambda: "waiting for 1 more" in together.said("a"), "the loss of b was never said")
    together.start("b")
    done = together.finish()
    assert done.exit_code == 0, done.output
    first = done.outcomes[0]
    same = weights(together.output) == unbroken_weights()
    lab_row(
        fault="supervisor killed on another machine",
        phase="step",
        task="torchrun, two machines",
        noticed_after_seconds=None,
        named="interrupted",
        finished=True,
        identical=same,
    )
    assert "on b: nothing was heard of its supervisor" in first.sentence
    assert first.is_outside
    assert same


@pytest.mark.full
def test_the_leader_killed_the_other_machine_leads_after_the_lease(together, lab_row):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("a", 15)
    together.machines["a"].kill()
    together.machines["a"].wait()
    together.wait_until(lambda: together.leader == "b", "nobody took over")
    together.start("a")
    done = together.finish()
    assert done.exit_code == 0, done.output
    same = weights(together.output) == unbroken_weights()
    lab_row(
        fault="leading supervisor killed",
        phase="step",
        task="torchrun, two machines",
        noticed_after_seconds=None,
        named="interrupted",
        finished=True,
        identical=same,
    )
    assert "nothing was heard of a" in together.said("b")
    assert "led by b" in together.said("a")
    assert [one.outcome for one in done.outcomes] == ["interrupted", "finished"]
    assert same


@pytest.mark.full
def test_a_machine_that_never_comes_is_waited_for_and_then_said(together):
    together.wait_seconds = 10
    machine = together.start("a")
    assert machine.wait(120) == 3
    said = together.said("a")
    assert "1 of 2 machines are here (a); waiting for 1 more" in said
    assert "1 machine of 2 did not come within" in said
    assert not (together.run / "attempts").exists()


@pytest.mark.full
def test_a_machine_asked_to_leave_lets_the_run_save_and_may_come_back(together):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("b", 15)
    together.machines["b"].send_signal(signal.SIGTERM)
    assert together.machines["b"].wait(120) == 128 + signal.SIGTERM
    together.start("b")
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert "b was asked to leave" in done.outcomes[0].sentence
    assert weights(together.output) == unbroken_weights()


@pytest.mark.full
def test_the_leader_asked_to_stop_stops_all_and_the_same_commands_go_on(together):
    together.variables["PAUSE"] = "0.1"
    together.start_both()
    together.rank_of("a", 15)
    together.machines["a"].send_signal(signal.SIGTERM)
    stopped = together.finish()
    assert stopped.exit_code == 128 + signal.SIGTERM, stopped.output
    assert stopped.result["state"] == "stopped"
    together.start_both()
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert weights(together.output) == unbroken_weights()


@pytest.mark.full
def test_storage_that_is_gone_for_a_while_is_said_and_waited_for(together):
    together.variables["PAUSE"] = "0.4"
    together.start_both()
    together.rank_of("b", 15)
    together.run.rename(together.folder / "away")
    together.wait_until(lambda: "cannot be written" in together.said("a"), "the leader said nothing")
    together.wait_until(lambda: "cannot be written" in together.said("b"), "the follower said nothing")
    (together.folder / "away").rename(together.run)
    done = together.finish()
    assert done.exit_code == 0, done.output
    assert "can be written again" in together.said("a")
    assert weights(together.output) == unbroken_weights()


def test_two_machines_of_one_name_are_refused(together):
    together.start("a")
    together.wait_until(lambda: (together.run / "leases" / "000001" / "notice").exists(), "nobody took the lead")
    first = together.machines["a"]
    second = together.start("a")
    assert second.wait(60) == 2
    assert "another supervisor of this run is called 'a' as well" in together.said("a")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 128 + signal.SIGTERM
