"""When silence is a hang: the rule, its budgets and its clocks. No clock runs here."""

import pytest

from holdfast.core.observations import RankVerdict, TreeVerdict, Verdict, Wait, WaitingThread, WaitTarget
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.clocks import Clocks, slept_seconds
from holdfast.supervisor.hang import Ruling, Silence, SilenceClock, StackReport, rule

DAY = 86_400.0


def ruled(verdict: Verdict, seconds: float, phase: str = "step", budgets: Budgets | None = None, **fields) -> Ruling:
    wait = fields.pop("wait", None)
    main = RankVerdict(pid=12, verdict=verdict, wait=wait) if wait else None
    times = {
        "silent_seconds": seconds,
        "passed_seconds": seconds,
        "still_seconds": seconds,
        "verdict_seconds": seconds,
        **fields,
    }
    return rule(Silence(phase=phase, verdict=TreeVerdict(verdict=verdict, main=main), **times), budgets or Budgets())


OWN_SLEEP = Wait(kind="sleep", target=WaitTarget.SLEEP)
STILL, MOVES, UNSEEN = StackReport(False), StackReport(True), StackReport(is_unseen=True)


def server(silent_seconds: float) -> Wait:
    return Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.1:443", silent_seconds=silent_seconds)


def helped(kind: str, *, pid: int = 40, name: str = "sleep") -> RankVerdict:
    """A training process that waits for its child, which waits itself."""
    helper = WaitingThread(pid=pid, tid=pid, name=name, wait=Wait(kind=kind, target=WaitTarget.SLEEP))
    wait = Wait(kind="tree", target=WaitTarget.CHILD, wakers=frozenset({pid}))
    return RankVerdict(pid=12, verdict=Verdict.SLEEPING, wait=wait, helper=helper)


OUTSIDE = [
    (helped("sleep"), "child"),
    (helped("timed"), "child"),
    (RankVerdict(pid=12, verdict=Verdict.SLEEPING, wait=OWN_SLEEP), "sleep"),
    (RankVerdict(pid=12, verdict=Verdict.WAIT_NET, wait=server(1e6)), "server"),
    (
        RankVerdict(
            pid=12, verdict=Verdict.WAIT_INPUT, wait=Wait(kind="input", target=WaitTarget.FILE_LOCK, name="/data/lock")
        ),
        "file_lock",
    ),
    (
        RankVerdict(
            pid=12, verdict=Verdict.KERNEL, wait=Wait(kind="kernel", target=WaitTarget.KERNEL, name="rpc_wait_bit")
        ),
        "disk",
    ),
]


def judged(main: RankVerdict, seconds: float, phase: str = "step", budgets: Budgets | None = None, **fields) -> Ruling:
    times = dict.fromkeys(("silent_seconds", "passed_seconds", "still_seconds", "verdict_seconds"), seconds)
    tree = TreeVerdict(verdict=main.verdict, main=main)
    return rule(Silence(phase=phase, verdict=tree, **times, **fields), budgets or Budgets())


@pytest.mark.parametrize("verdict", [Verdict.DEADLOCK, Verdict.STOPPED])
def test_deadlock_is_a_hang_in_every_phase(verdict):
    for phase in ("start", "import", "load", "compile", "step", "evaluate", "save", "end"):
        assert ruled(verdict, 4.0, phase).is_hung


def test_a_debugger_is_never_a_hang():
    assert not ruled(Verdict.DEBUGGED, DAY).is_hung


def test_starved_work_hangs_only_with_an_unchanged_stack():
    assert not ruled(Verdict.STARVED, 29.0, stacks=STILL).is_hung
    assert not ruled(Verdict.STARVED, DAY).is_hung
    assert ruled(Verdict.STARVED, 31.0, stacks=STILL).is_hung


def test_busy_card_is_not_a_deadlock():
    assert not ruled(Verdict.DEADLOCK, 20.0, is_gpu_busy=True).is_hung


@pytest.mark.parametrize("verdict", [Verdict.TIMED, Verdict.WAIT_INPUT, Verdict.SLEEPING])
def test_wait_in_a_step_uses_the_step_budget(verdict):
    assert not ruled(verdict, 29.0).is_hung
    assert ruled(verdict, 31.0).is_hung


def test_own_wait_with_a_limit_is_given_longer():
    limited = Wait(kind="timed", target=WaitTarget.LOCK_WITH_TIMEOUT)
    assert not ruled(Verdict.TIMED, 60.0, wait=limited).is_hung
    assert ruled(Verdict.TIMED, 100.0, wait=limited).is_hung


def test_allowed_wait_has_a_known_deadline():
    ruling = ruled(Verdict.SLEEPING, 180.0, "start", wait=OWN_SLEEP)
    assert (ruling.waited_seconds, ruling.limit_seconds) == (180.0, 1800.0)
    assert (
        ruled(Verdict.SLEEPING, 3.0, wait=OWN_SLEEP, budgets=Budgets(step_timeout_seconds=15.0)).limit_seconds == 15.0
    )
    assert ruled(Verdict.MOVING, 3.0).limit_seconds is None


def test_wait_outside_steps_counts_from_the_last_activity():
    assert not ruled(Verdict.SLEEPING, 5000.0, "load", still_seconds=20.0).is_hung
    assert ruled(Verdict.SLEEPING, 5000.0, "load", still_seconds=400.0).is_hung


def test_the_network_is_judged_by_its_last_byte():
    assert not ruled(Verdict.WAIT_NET, 500.0, "load", wait=server(2.0)).is_hung
    assert ruled(Verdict.WAIT_NET, 500.0, "load", wait=server(61.0)).is_hung
    assert ruled(Verdict.WAIT_NET, 61.0, "load").is_hung  # the time of the last byte is not known


def test_writing_disk_is_waited_for():
    assert not ruled(Verdict.KERNEL, 900.0, "save", is_disk_alive=True).is_hung
    assert ruled(Verdict.KERNEL, 900.0, "save").is_hung
    assert not ruled(Verdict.KERNEL, 200.0).is_hung


def test_busy_and_late_asks_for_stacks_first():
    assert ruled(Verdict.MOVING, 31.0) == Ruling(wants_stacks=True)
    assert ruled(Verdict.MOVING, 31.0, stacks=STILL).is_hung
    assert not ruled(Verdict.MOVING, 3600.0, stacks=MOVES).is_hung


def test_late_step_without_stacks_gets_twice_the_time():
    assert not ruled(Verdict.MOVING, 59.0, stacks=UNSEEN).is_hung
    assert ruled(Verdict.MOVING, 61.0, stacks=UNSEEN).given_up.reason == "busy_stacks_unseen"


def test_too_few_stacks_are_not_a_hang():
    assert ruled(Verdict.MOVING, 3600.0) == Ruling(wants_stacks=True)
    assert ruled(Verdict.MOVING, 7300.0).given_up.reason == "busy_stacks_unseen"


def test_command_without_phases_has_generous_limits():
    for phase in ("unknown", "start"):
        assert not ruled(Verdict.MOVING, 10 * DAY, phase, stacks=STILL).is_hung
    assert not ruled(Verdict.WAIT_NET, 3000.0, "unknown", wait=server(3000.0)).is_hung
    assert not ruled(Verdict.SLEEPING, 3000.0, "unknown").is_hung


def test_the_users_own_limit_overrides_all_learning():
    slow = Budgets(step_timeout_seconds=300.0)
    for seconds in (10.0, 100.0):
        slow.note_step(seconds)
    assert ruled(Verdict.MOVING, 301.0, budgets=slow, stacks=MOVES).is_hung
    assert not ruled(Verdict.MOVING, 299.0, budgets=slow, stacks=STILL).is_hung
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


def moving(share: float = 1.0) -> TreeVerdict:
    return TreeVerdict(verdict=Verdict.MOVING, cpu_share=1.0, given_share=share)


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
    clock.count(1.0, TreeVerdict(verdict=Verdict.SLEEPING))
    clock.count(3601.0, TreeVerdict(verdict=Verdict.SLEEPING))
    assert clock.counted_seconds == 6.0
    assert clock.still_seconds(3601.0) == 6.0


def test_work_with_half_a_processor_gets_twice_the_time():
    clock = SilenceClock(0.0)
    for second in range(1, 11):
        clock.count(float(second), moving(0.5))
    assert clock.counted_seconds == 5.0


def test_debugger_pause_restarts_the_count():
    clock = SilenceClock(0.0)
    clock.count(4.0, moving())
    clock.count(5.0, TreeVerdict(verdict=Verdict.DEBUGGED))
    assert clock.counted_seconds == 0.0


def test_time_before_progress_does_not_count():
    waits, clock = TreeVerdict(verdict=Verdict.WAIT_INPUT), SilenceClock(100.0)
    clock.count(103.0, waits)
    clock.note_progress(105.0)
    clock.count(105.0, waits)
    assert clock.counted_seconds == 0
    clock.count(107.0, waits)
    assert clock.counted_seconds == clock.silent_seconds(107.0) == 2


@pytest.mark.parametrize(("main", "kind"), OUTSIDE)
@pytest.mark.parametrize("phase", ["start", "step", "evaluate", "save", "begin epoch"])
def test_wait_for_something_alive_outside_gets_half_an_hour(main, kind, phase):
    assert main.outside.kind == kind
    assert not judged(main, 1700.0, phase).is_hung
    assert judged(main, 1700.0, phase).limit_seconds == 1800.0
    assert judged(main, 1900.0, phase).given_up.reason == "outside_too_long"


def test_longer_waits_of_this_run_raise_the_limit():
    budgets = Budgets()
    budgets.note_outside(1200.0)
    assert not judged(helped("sleep"), 7000.0, budgets=budgets).is_hung
    assert Budgets(earlier=budgets.learnt()).outside_seconds() == 7200.0


@pytest.mark.parametrize(
    "main",
    [
        helped("sleep", pid=12, name="heartbeat"),  # a thread of its own
        helped("timed", name="pt_data_worker"),
        helped("input"),  # a child that reads a FIFO nobody writes to
        RankVerdict(
            pid=12,
            verdict=Verdict.WAIT_NET,
            wait=Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.1:443", is_lost=True),
        ),
        RankVerdict(
            pid=12, verdict=Verdict.WAIT_NET, wait=Wait(kind="net", target=WaitTarget.CONNECTING, name="10.0.0.1:443")
        ),
        RankVerdict(pid=12, verdict=Verdict.DEADLOCK, wait=Wait(kind="lock", target=WaitTarget.LOCK)),
    ],
)
def test_wait_without_a_sign_of_life_gets_the_usual_limit(main):
    assert main.outside is None
    assert judged(main, 100.0).is_hung


def test_another_program_that_computes_is_waited_for():
    wait = Wait(kind="tree", target=WaitTarget.CHILD, wakers=frozenset({40}))
    helper = WaitingThread(pid=40, tid=40, name="evaluate", wait=Wait(kind="run", target=WaitTarget.NOTHING))
    main = RankVerdict(pid=12, verdict=Verdict.MOVING, wait=wait, helper=helper)
    assert not judged(main, 1700.0, stacks=STILL).is_hung
    assert judged(main, 1900.0, stacks=STILL).given_up.reason == "outside_too_long"


@pytest.mark.parametrize(
    "wait",
    [
        Wait(kind="kernel", target=WaitTarget.KERNEL, name="mem_cgroup_oom_synchronize"),  # the OOM killer is off
        Wait(kind="kernel", target=WaitTarget.SYSTEM_CALL, name="semop"),
        Wait(kind="device", target=WaitTarget.DEVICE, name="/dev/nvidia0"),
    ],
)
def test_not_every_wait_in_the_kernel_is_for_a_disk(wait):
    main = RankVerdict(pid=12, verdict=Verdict.KERNEL, wait=wait)
    assert main.outside is None
    assert judged(main, 400.0).is_hung
