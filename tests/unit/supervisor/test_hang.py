"""When silence is a hang: the rule, its budgets and its clocks. No clock runs here."""

import pytest

from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.clocks import Clocks, slept_seconds
from holdfast.supervisor.hang import Ruling, Silence, rule
from holdfast.supervisor.motion import thread_signature, working_thread
from holdfast.supervisor.processes import TreeSample
from holdfast.supervisor.silence import SilenceClock
from holdfast.supervisor.verdict import Judged, Verdict
from tests.unit.supervisor.samples import process, thread

DAY = 86_400.0


def ruled(verdict: Verdict, seconds: float, phase: str = "step", budgets: Budgets | None = None, **fields) -> Ruling:
    judged = Judged(verdict=verdict, words="waits for something", **fields.pop("judged", {}))
    times = {
        "silent_seconds": seconds,
        "passed_seconds": seconds,
        "still_seconds": seconds,
        "verdict_seconds": seconds,
        **fields,
    }
    return rule(Silence(phase=phase, judged=judged, **times), budgets or Budgets())


@pytest.mark.parametrize("verdict", [Verdict.DEADLOCK, Verdict.STOPPED])
def test_deadlock_is_a_hang_in_every_phase(verdict):
    for phase in ("start", "import", "load", "compile", "step", "evaluate", "save", "end"):
        assert ruled(verdict, 4.0, phase).is_hung


def test_a_debugger_is_never_a_hang():
    assert not ruled(Verdict.DEBUGGED, DAY).is_hung


def test_starved_work_hangs_only_with_an_unchanged_stack():
    assert not ruled(Verdict.STARVED, 29.0, stacks_move=False).is_hung
    assert not ruled(Verdict.STARVED, DAY).is_hung
    assert ruled(Verdict.STARVED, 31.0, stacks_move=False).is_hung


def test_busy_card_is_not_a_deadlock():
    assert not ruled(Verdict.DEADLOCK, 20.0, is_gpu_busy=True).is_hung


@pytest.mark.parametrize("verdict", [Verdict.TIMED, Verdict.WAIT_INPUT, Verdict.SLEEPING])
def test_wait_in_a_step_uses_the_step_budget(verdict):
    assert not ruled(verdict, 29.0).is_hung
    assert ruled(verdict, 31.0).is_hung


def test_a_main_thread_that_sleeps_by_itself_is_given_longer():
    assert not ruled(Verdict.SLEEPING, 60.0, judged={"is_own_timer": True}).is_hung
    assert ruled(Verdict.SLEEPING, 100.0, judged={"is_own_timer": True}).is_hung


def test_allowed_wait_has_a_known_deadline():
    asleep = {"judged": {"is_own_timer": True}}
    ruling = ruled(Verdict.SLEEPING, 180.0, "start", **asleep)
    assert (ruling.waited_seconds, ruling.limit_seconds) == (180.0, 1800.0)
    assert ruled(Verdict.SLEEPING, 3.0, budgets=Budgets(step_timeout_seconds=15.0), **asleep).limit_seconds == 15.0
    assert ruled(Verdict.MOVING, 3.0).limit_seconds is None


def test_a_wait_outside_steps_counts_from_when_things_last_moved():
    assert not ruled(Verdict.SLEEPING, 5000.0, "load", still_seconds=20.0).is_hung
    assert ruled(Verdict.SLEEPING, 5000.0, "load", still_seconds=400.0).is_hung


def test_the_network_is_judged_by_its_last_byte():
    assert not ruled(Verdict.WAIT_NET, 500.0, "load", judged={"silent_seconds": 2.0}).is_hung
    assert ruled(Verdict.WAIT_NET, 500.0, "load", judged={"silent_seconds": 61.0}).is_hung
    assert ruled(Verdict.WAIT_NET, 61.0, "load").is_hung  # the time of the last byte is not known


def test_a_disk_that_still_writes_is_waited_for():
    assert not ruled(Verdict.KERNEL, 900.0, "save", is_disk_alive=True).is_hung
    assert ruled(Verdict.KERNEL, 900.0, "save").is_hung
    assert not ruled(Verdict.KERNEL, 200.0).is_hung


def test_busy_and_late_asks_for_stacks_first():
    assert ruled(Verdict.MOVING, 31.0) == Ruling(wants_stacks=True)
    assert ruled(Verdict.MOVING, 31.0, stacks_move=False).is_hung
    assert not ruled(Verdict.MOVING, 3600.0, stacks_move=True).is_hung


def test_late_step_without_stacks_gets_twice_the_time():
    assert not ruled(Verdict.MOVING, 59.0).is_hung
    assert ruled(Verdict.MOVING, 61.0).is_hung


def test_command_without_phases_has_generous_limits():
    for phase in ("unknown", "start"):
        assert not ruled(Verdict.MOVING, 10 * DAY, phase, stacks_move=False).is_hung
    assert not ruled(Verdict.WAIT_NET, 3000.0, "unknown", judged={"silent_seconds": 3000.0}).is_hung
    assert not ruled(Verdict.SLEEPING, 3000.0, "unknown").is_hung


def test_the_users_own_limit_overrides_all_learning():
    slow = Budgets(step_timeout_seconds=300.0)
    for seconds in (10.0, 100.0):
        slow.note_step(seconds)
    assert ruled(Verdict.MOVING, 301.0, budgets=slow, stacks_move=True).is_hung
    assert not ruled(Verdict.MOVING, 299.0, budgets=slow, stacks_move=False).is_hung
    assert ruled(Verdict.SLEEPING, 301.0, budgets=slow).is_hung
    assert ruled(Verdict.MOVING, 301.0, "unknown", budgets=slow).is_hung
    assert not ruled(Verdict.MOVING, 301.0, "load", budgets=slow).is_hung  # no step is due yet


def test_dying_children_are_watched_for_a_moment():
    assert not ruled(Verdict.CRASH_LOOP, 5.0).is_hung
    assert ruled(Verdict.CRASH_LOOP, 12.0).is_hung


def test_the_budget_follows_the_slowest_recent_step():
    budgets = Budgets()
    assert budgets.step_seconds == 30.0
    budgets.note_step(20.0)
    assert budgets.step_seconds == 120.0
    for _ in range(50):
        budgets.note_step(1.0)
    assert budgets.step_seconds == 30.0  # and never less than what a step has taken before
    budgets.note_step(50.0)
    for _ in range(50):
        budgets.note_step(1.0)
    assert budgets.step_seconds == 75.0


def test_earlier_runs_make_room_for_slow_phases():
    budgets = Budgets(earlier={"load": 900.0, "step": 40.0})
    assert budgets.waiting_seconds("load") == 5400.0
    assert budgets.step_seconds == 240.0


def test_learned_limits_are_kept_for_the_next_run():
    budgets = Budgets()
    budgets.note_phase("load", 12.0)
    budgets.note_phase("load", 8.0)
    budgets.note_step(2.0)
    assert budgets.learnt() == {"load": 12.0, "step": 2.0}


def moving(share: float = 1.0) -> Judged:
    return Judged(verdict=Verdict.MOVING, words="works", given_share=share)


def test_a_sleeping_machine_is_seen_by_its_clocks():
    assert slept_seconds(Clocks(10.0, 10.0), Clocks(11.0, 3611.0)) == 3600.0
    assert slept_seconds(Clocks(10.0, 10.0), Clocks(40.0, 40.1)) == 0.0


def test_time_that_a_machine_slept_does_not_count():
    clock = SilenceClock(0.0)
    for second in range(1, 20):
        clock.count(float(second), moving())
    clock.note_sleep(20.0)
    assert clock.counted_seconds == 0.0


def test_time_of_a_delayed_supervisor_does_not_count():
    clock = SilenceClock(0.0)
    clock.count(1.0, Judged(verdict=Verdict.SLEEPING, words="sleeps"))
    clock.count(3601.0, Judged(verdict=Verdict.SLEEPING, words="sleeps"))
    assert clock.counted_seconds == 6.0
    assert clock.still_seconds(3601.0) == 6.0


def test_work_with_half_a_processor_gets_twice_the_time():
    clock = SilenceClock(0.0)
    for second in range(1, 11):
        clock.count(float(second), moving(0.5))
    assert clock.counted_seconds == 5.0


def test_a_debuggers_pause_begins_the_count_again():
    clock = SilenceClock(0.0)
    clock.count(4.0, moving())
    clock.count(5.0, Judged(verdict=Verdict.DEBUGGED, words=""))
    assert clock.counted_seconds == 0.0


PY_SPY = """Process 12: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 12 (active+gil)
    spin (train.py:10)
    <module> (train.py:20)
Thread 13 (idle)
    wait (threading.py:320)
"""
FAULTHANDLER = """Thread 0x00007f2c (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2d (most recent call first):
  File "train.py", line 10 in spin
  File "train.py", line 20 in <module>
"""


def test_a_stack_is_known_by_its_functions():
    assert thread_signature(PY_SPY, 12) == ("spin (train.py)", "<module> (train.py)")
    assert thread_signature(PY_SPY, 13) == ("wait (threading.py)",)
    assert thread_signature(PY_SPY, 14) == ()
    assert thread_signature(FAULTHANDLER, 12) == ("spin (train.py)", "<module> (train.py)")
    assert thread_signature("", 12) == ()


def watched_thread(main_ns: int, other_ns: int, main_turns: int = 0) -> tuple[int, bool]:
    first = TreeSample(at_seconds=0.0, processes=(process(12, thread(12), thread(13)),))
    later = process(12, thread(12, run_ns=main_ns, turns=main_turns), thread(13, run_ns=other_ns, turns=9))
    return working_thread(later, first, 4.0)


def test_busy_monitor_does_not_hide_stuck_main_thread():
    assert watched_thread(0, 200_000_000) == (12, True)


def test_working_thread_is_sampled_while_main_waits():
    assert watched_thread(1_000_000, 3_000_000_000, main_turns=3) == (13, False)


def test_working_main_thread_is_sampled():
    assert watched_thread(3_000_000_000, 3_900_000_000, main_turns=3) == (12, False)
