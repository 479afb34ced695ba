"""The ladder: which attempt follows which failure, and when it stops."""

from dataclasses import replace

import pytest

from holdfast.core.evidence import Diagnosis
from holdfast.core.plan import Reason, Remedy
from holdfast.core.settings import EngineSettings
from holdfast.hazards import find_hazard
from holdfast.supervisor.ladder import Tried, choose_fallback
from holdfast.supervisor.ladders import command_ladder, engine_ladder


def engine_settings(**given: object) -> EngineSettings:
    return EngineSettings(task="classify", model="/m", prepared="/p", run="/r", **given)


LADDER = command_ladder(has_accelerator=True)
UNKNOWN = Diagnosis(slug="unknown", confidence="unknown", title="the cause is not established")
HUNG = Tried(changes={}, ending="hang")
CRASHED = Tried(changes={}, ending="signal", exit_code=-11)


def named(slug: str) -> Diagnosis:
    hazard = find_hazard(slug)
    return Diagnosis(slug=slug, confidence="proven", title=hazard.title, remedies=hazard.remedies)


def climb(diagnosis: Diagnosis, first: Tried, ladder=LADDER, most: int = 40, **options) -> list[Tried]:
    """Attempt after attempt that fails in the same way without ever getting further."""
    tried = [replace(first, slug=diagnosis.slug)]
    while (decision := choose_fallback(diagnosis, tried, ladder, **options)).action != "stop":
        tried.append(replace(tried[-1], changes=decision.changes, fallback=decision.fallback))
        assert len(tried) <= most, "it never stops"
    return tried


def test_the_named_remedy_comes_first():
    decision = choose_fallback(named("dataloader-deadlock"), [HUNG], LADDER)
    assert decision.fallback.change == {"loader_workers": 0}
    assert decision.changes == {"loader_workers": 0}
    assert decision.reason.kind == "remedy"


def test_general_fallbacks_follow_used_up_remedies():
    tried = climb(named("dataloader-deadlock"), HUNG)
    seen = [tuple(sorted(one.changes.items())) for one in tried]
    assert len(set(seen)) == len(seen)
    assert tried[-1].changes["device"] == "cpu"


def test_it_stops_after_the_most_attempts_that_are_allowed():
    tried = climb(named("host-oom"), Tried(changes={}, ending="signal", exit_code=-9), max_attempts=5)
    assert len(tried) == 5


def test_attempts_that_get_further_are_not_counted_against_it():
    tried = [replace(CRASHED, exit_code=-9, is_outside=True, step_reached=step) for step in range(10, 600, 20)]
    assert choose_fallback(named("host-oom"), tried, LADDER).action == "again"
    stuck = [*tried, *[tried[-1]] * 12]
    decision = choose_fallback(named("host-oom"), stuck, LADDER)
    assert (decision.action, decision.reason.kind, decision.reason.attempts) == ("stop", "no_progress_limit", 12)


def test_endless_progress_ends_at_the_limit_of_all_attempts():
    tried = [replace(CRASHED, exit_code=-9, is_outside=True, step_reached=step) for step in range(1, 31)]
    reason = choose_fallback(named("host-oom"), tried, LADDER, max_attempts=3).reason
    assert (reason.kind, reason.attempts) == ("attempt_limit", 30)


@pytest.mark.parametrize(
    ("phase", "first"), [("first step", "loader_workers"), ("evaluate", "eval_micro_batch_factor")]
)
def test_memory_that_ran_out_while_evaluating_is_saved_there(phase, first):
    out_of_memory = Tried(changes={}, ending="signal", exit_code=-9, phase=phase)
    tried = climb(named("host-oom"), out_of_memory, max_attempts=8)
    assert first in tried[1].changes
    assert any("eval_micro_batch_factor" in one.changes for one in tried) is (phase == "evaluate")


def test_an_endless_halving_is_bounded():
    assert len(climb(named("cuda-oom"), Tried(changes={}, ending="code", exit_code=1), max_attempts=30)) <= 30


def test_learning_changes_need_permission():
    remedy = Remedy("shorter texts", change={"max_length": 128}, keeps=False)
    diagnosis = Diagnosis(slug="host-oom", confidence="proven", title="out of memory", remedies=(remedy,))
    assert all("max_length" not in one.changes for one in climb(diagnosis, CRASHED))
    allowed = climb(diagnosis, CRASHED, allow_changes=True)
    assert "max_length" in allowed[-1].changes
    assert "max_length" not in allowed[-2].changes


def test_external_kill_with_progress_keeps_the_plan():
    tried = [replace(CRASHED, exit_code=-9, is_outside=True, step_reached=step) for step in (10, 20, 30, 40, 50)]
    decision = choose_fallback(named("host-oom"), tried, LADDER)
    assert decision.action == "again"
    assert decision.changes == {}


def test_external_kills_without_progress_change_the_plan():
    tried = [replace(CRASHED, exit_code=-9, is_outside=True, step_reached=10) for _ in range(5)]
    assert choose_fallback(named("host-oom"), tried, LADDER).action == "fallback"


def test_unknown_crash_with_progress_keeps_the_plan():
    first = choose_fallback(named("segfault-other"), [replace(CRASHED, slug="segfault-other", step_reached=40)], LADDER)
    assert (first.action, first.changes) == ("again", {})


def test_repeated_crash_at_same_step_takes_a_fallback():
    tried = [replace(CRASHED, slug="segfault-other", step_reached=40)] * 2
    assert choose_fallback(named("segfault-other"), tried, LADDER).fallback.change == {"loader_workers": 0}


@pytest.mark.parametrize("error", ["NameError: name 'x' is not defined", "ModuleNotFoundError: No module named 'y'"])
def test_a_plain_bug_of_the_script_is_not_tried_again(error):
    tried = [Tried(changes={}, ending="code", exit_code=1, error=error, place="train.py:3")]
    decision = choose_fallback(UNKNOWN, tried, LADDER)
    assert (decision.action, decision.exit_code) == ("stop", 4)


def test_unknown_exception_is_retried_once():
    bug = Tried(changes={}, ending="code", exit_code=1, error="ValueError: odd", place="train.py:9")
    tried = climb(UNKNOWN, bug)
    assert len(tried) == 2
    assert len(climb(UNKNOWN, replace(bug, step_reached=30))) == 2


def test_own_exit_code_is_returned():
    decision = choose_fallback(UNKNOWN, [Tried(changes={}, ending="code", exit_code=2)], LADDER)
    assert (decision.action, decision.exit_code) == ("stop", 2)


def test_known_error_without_remedy_stops():
    decision = choose_fallback(named("hub-gated"), [Tried(changes={}, ending="code", exit_code=1)], LADDER)
    assert (decision.action, decision.exit_code) == ("stop", 4)


def test_ineffective_fallback_is_dropped():
    tried = [
        replace(HUNG, slug="unknown"),
        replace(
            HUNG,
            changes={"loader_workers": 0},
            fallback=LADDER.fallbacks[0],
            ineffective=frozenset({"loader_workers"}),
            slug="unknown",
        ),
    ]
    decision = choose_fallback(UNKNOWN, tried, LADDER)
    assert decision.changes == {"start_method": "spawn"}


def test_harmful_fallback_is_reverted():
    tried = [
        replace(HUNG, step_reached=40, changes={"loader_workers": 0}),
        Tried(
            changes={"loader_workers": 0, "start_method": "spawn"},
            fallback=LADDER.fallbacks[1],
            ending="code",
            exit_code=1,
            error="AttributeError: Can't get local object 'main.<locals>.f'",
            place="reduction.py:60",
        ),
    ]
    decision = choose_fallback(UNKNOWN, tried, LADDER)
    assert decision.action == "fallback"
    assert "start_method" not in decision.changes
    assert decision.changes["loader_workers"] == 0


def test_no_cpu_fallback_without_an_accelerator():
    ladder = command_ladder(has_accelerator=False)
    assert all("device" not in one.changes for one in climb(UNKNOWN, HUNG, ladder))


def test_full_disk_is_a_machine_error():
    tried = climb(named("disk-full"), Tried(changes={}, ending="code", exit_code=1))
    assert choose_fallback(named("disk-full"), tried, LADDER).exit_code == 3


def test_the_engines_ladder_speaks_the_engines_names():
    ladder = engine_ladder(engine_settings(micro_tokens=16_384, packing=True, precision="bf16", device="cuda"))
    memory = ladder.apply({}, {"micro_batch": "halve"})
    assert memory == {"micro_tokens": 8192}
    assert ladder.apply(memory, {"micro_batch": "halve"}) == {"micro_tokens": 4096}
    assert ladder.apply({}, {"loader_workers": 0}) == {}
    tried = climb(UNKNOWN, HUNG, ladder)
    assert tried[-1].changes["device"] == "cpu"
    assert tried[-1].changes["precision"] == "fp32"


def test_repeated_immediate_ends_are_given_up():
    killed = replace(CRASHED, exit_code=-9, is_outside=True, phase="start", seconds=0.4)
    assert choose_fallback(named("process-killed"), [killed] * 2, LADDER).action == "again"
    decision = choose_fallback(named("process-killed"), [killed] * 3, LADDER)
    assert (decision.action, decision.reason) == ("stop", Reason(kind="killed_at_start", attempts=3))
    late = replace(killed, seconds=4000.0, phase="")  # a command that tells nothing of itself
    assert choose_fallback(named("process-killed"), [late] * 3, LADDER).action == "again"


def test_own_lock_deadlock_is_retried_once_and_named():
    stuck = replace(HUNG, slug="script-deadlock", place="train.py:4")
    tried = climb(named("script-deadlock"), stuck)
    assert len(tried) == 2
    decision = choose_fallback(named("script-deadlock"), tried, LADDER)
    assert decision.reason == Reason(kind="same_failure", place="train.py:4")
    further = [stuck, replace(stuck, step_reached=9)]
    assert choose_fallback(named("script-deadlock"), further, LADDER).action == "again"


def test_exit_without_a_known_error_is_not_called_deliberate():
    ended = Tried(changes={}, ending="code", exit_code=3)
    decision = choose_fallback(UNKNOWN, [ended], LADDER)
    assert (decision.action, decision.exit_code, decision.reason.kind) == ("stop", 3, "unexplained_exit")


def test_deliberate_exit_is_not_retried():
    left = Tried(changes={}, ending="code", exit_code=3, slug="script-exit")
    decision = choose_fallback(named("script-exit"), [left], LADDER)
    assert (decision.action, decision.exit_code) == ("stop", 3)
    assert decision.reason.kind == "deliberate_exit"
    assert len(climb(named("script-exit"), replace(left, step_reached=30))) == 2  # it had got further


@pytest.mark.parametrize(("slug", "attempts"), [("script-abort", 2), ("input-empty", 1)])
def test_self_inflicted_failures_are_given_up_soon(slug, attempts):
    assert len(climb(named(slug), replace(CRASHED, exit_code=-6, place="train.py:4"))) == attempts


def test_the_same_error_again_is_named_with_its_place():
    bug = Tried(changes={}, ending="code", exit_code=1, error="KeyError: 'lr'", place="train.py:9")
    assert choose_fallback(UNKNOWN, [bug, bug], LADDER).reason == Reason(kind="same_error", place="train.py:9")


def test_numbers_that_went_wrong_are_not_answered_by_other_processes():
    failed = Tried(changes={}, ending="code", exit_code=1, slug="nan-loss", step_reached=8)
    taken = [one.fallback.change for one in climb(named("nan-loss"), failed) if one.fallback]
    assert taken[0] == {"precision": "fp32"}
    assert not any({"start_method", "threads"} & set(change) for change in taken)


@pytest.mark.parametrize("ladder", [LADDER, engine_ladder(engine_settings(device="cpu", threads=2))])
def test_default_behavior_is_not_a_fallback(ladder):
    tried = climb(named("segfault-other"), CRASHED, ladder)
    assert len(tried) > 1
    assert not any("PYTHONFAULTHANDLER" in one.changes for one in tried)


def test_late_hang_is_retried_before_slower_settings():
    ladder, deadlock = engine_ladder(engine_settings(threads=2)), named("thread-deadlock")
    late = replace(HUNG, slug="thread-deadlock", step_reached=300, seconds=200.0)
    first = choose_fallback(deadlock, [late], ladder)
    assert (first.action, first.changes) == ("again", {})
    assert first.reason == Reason(kind="hang_chance", seconds=200.0)
    second = choose_fallback(deadlock, [late, replace(late, step_reached=600)], ladder)
    assert second.changes["threads"] == 1
    for soon in (replace(late, seconds=20.0), replace(late, step_reached=0)):
        assert choose_fallback(deadlock, [soon], ladder).changes["threads"] == 1
    assert choose_fallback(deadlock, [late], LADDER).action == "fallback"  # a command may have nothing to resume from
