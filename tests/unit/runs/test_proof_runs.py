"""When the proof kills the first steps: enough of them, and some that are not saved."""

import pytest

from holdfast.core.events import CheckpointSaved, StepDone
from holdfast.pipeline.proof_budget import steps_wanted
from holdfast.runs.proof_runs import StepCount


def progress_after(wanted: int, *events: tuple[str, int]) -> StepCount:
    progress = StepCount(wanted)
    for name, step in events:
        progress.take(StepDone(step=step) if name == "step" else CheckpointSaved(step=step))
    return progress


@pytest.mark.parametrize(
    ("done", "saved", "is_enough"),
    [
        (8, 6, True),
        (8, 7, False),  # nothing much would be repeated
        (8, None, False),  # nothing to go on from
        (7, 3, False),  # too few to be measured
        (15, 14, False),
        (16, 15, True),  # each step is saved: one that is not has to do
    ],
)
def test_enough_steps_are_done_and_some_not_saved(done, saved, is_enough):
    events = [("step", step) for step in range(done)]
    if saved is not None:
        events.insert(saved, ("saved", saved))
    assert progress_after(8, *events).is_enough is is_enough


def test_few_steps_of_a_short_run_and_never_many():
    assert [steps_wanted(steps) for steps in (10, 1000, 100_000)] == [8, 20, 100]
