"""What the loop over attempts decides without starting one."""

from holdfast.runs.supervise import step_floor_seconds
from holdfast.supervisor.budgets import STEP_FLOOR_SECONDS
from holdfast.supervisor.outcome import Outcome


def given_up(slug: str) -> Outcome:
    return Outcome(number=1, outcome="hung", exit_code=None, phase="step", step_reached=7, steps=9, diagnosis=slug)


def test_busy_work_that_was_given_up_gets_longer_the_next_time():
    assert step_floor_seconds([]) == STEP_FLOOR_SECONDS
    assert step_floor_seconds([given_up("busy-livelock")]) == 4 * STEP_FLOOR_SECONDS
    assert step_floor_seconds([given_up("busy-livelock")] * 9) == 3600


def test_a_deadlock_earns_no_patience():
    assert step_floor_seconds([given_up("dataloader-deadlock")]) == STEP_FLOOR_SECONDS
