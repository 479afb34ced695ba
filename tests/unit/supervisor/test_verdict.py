"""The verdict on windows recorded from real programs, and on made-up ones that are hard to bring about."""

import dataclasses

import pytest

from holdfast.core.artifacts import to_plain
from holdfast.core.observations import Verdict, Wait, WaitTarget
from holdfast.supervisor.child_exits import ChildExit
from holdfast.supervisor.processes import TreeSample
from holdfast.supervisor.verdict import judge_ranks, judge_window
from tests.unit.supervisor.samples import RECORDED, lock, process, recorded, thread, window


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_window_keeps_its_verdict(name):
    samples, told = recorded(name)
    found = judge_window(samples, training_pids=told["training_pids"])
    assert found.verdict.name == told["verdict"]
    assert (to_plain(found.main) if found.main else None) == told["main"]


def test_deadlocked_worker_and_its_waiter_are_named():
    samples, _ = recorded("loader_lock")
    main = judge_window(samples).main
    assert main.stuck.command == "pt_data_worker"
    assert main.pid == samples[-1].processes[0].pid != main.stuck.pid


def test_the_rank_outside_the_collective_comes_first():
    samples, told = recorded("rank_asleep")
    culprit, victim = judge_ranks(*samples, told["training_pids"])
    assert (culprit.verdict, victim.verdict) == (Verdict.SLEEPING, Verdict.TIMED)


def test_threads_that_wait_for_each_other_are_a_deadlock():
    samples = window(process(10, thread(10), thread(11)), t10=lock(10), t11=lock(10))
    assert judge_window(samples).verdict is Verdict.DEADLOCK


def test_sleeping_thread_may_release_a_waiter():
    sleeps = Wait(kind="sleep", target=WaitTarget.SLEEP)
    samples = window(process(10, thread(10), thread(11)), t10=lock(10), t11=sleeps)
    found = judge_window(samples)
    assert found.verdict is Verdict.SLEEPING
    assert not found.is_own_timer


def test_library_monitor_thread_wakes_no_one():
    ticks = Wait(kind="timed", target=WaitTarget.LOCK_WITH_TIMEOUT)
    samples = window(process(10, thread(10), thread(11, name="TMonitor")), t10=lock(10), t11=ticks)
    assert judge_window(samples).verdict is Verdict.DEADLOCK


def test_released_lock_is_not_a_deadlock():
    first, last = window(process(10, thread(10), thread(11)), t10=lock(10), t11=lock(10))
    busy = dataclasses.replace(last.processes[0].threads[1], turns=5)
    threads = (last.processes[0].threads[0], busy)
    last = dataclasses.replace(last, processes=(dataclasses.replace(last.processes[0], threads=threads),))
    assert judge_window((first, last)).verdict is Verdict.TIMED


def test_alarm_can_wake_a_program():
    samples = window(process(10, thread(10), thread(11), has_alarm=True), t10=lock(10), t11=lock(10))
    assert judge_window(samples).verdict is Verdict.TIMED


def test_parent_of_downloading_child_waits_for_network():
    child = Wait(kind="tree", target=WaitTarget.CHILD, wakers=frozenset({20}))
    net = Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.1:443", silent_seconds=70.0)
    samples = window(process(10), process(20, parent=10), t10=child, t20=net)
    found = judge_window(samples)
    assert found.verdict is Verdict.WAIT_NET
    assert found.main.wait == child
    assert (found.main.helper.pid, found.main.helper.wait) == (20, net)
    assert found.silent_seconds == 70.0


def test_serving_main_thread_waits_for_the_network():
    listens = Wait(kind="listen", target=WaitTarget.LISTENING, name="0.0.0.0:6006")
    assert (
        judge_window(window(process(10, thread(10), thread(11)), t10=lock(10), t11=listens)).verdict is Verdict.DEADLOCK
    )
    assert judge_window(window(process(10), t10=listens)).verdict is Verdict.WAIT_NET


def test_driver_thread_wakes_no_one_but_main_may_wait():
    card = Wait(kind="device", target=WaitTarget.DEVICE, name="/dev/nvidia0")
    assert judge_window(window(process(10, thread(10), thread(11)), t10=lock(10), t11=card)).verdict is Verdict.DEADLOCK
    assert judge_window(window(process(10), t10=card)).verdict is Verdict.KERNEL


def test_training_process_counts_not_the_launcher():
    sleeps = Wait(kind="sleep", target=WaitTarget.SLEEP)
    samples = window(process(10), process(20, parent=10), t10=sleeps, t20=lock(20))
    assert judge_window(samples, training_pids=(20,)).verdict is Verdict.DEADLOCK
    assert judge_window(samples).verdict is Verdict.SLEEPING


def test_slow_page_faults_are_a_kernel_wait():
    samples = window(
        process(10, thread(10, "D")), t10=Wait(kind="kernel", target=WaitTarget.KERNEL, name="fuse_get_req")
    )
    assert judge_window(samples).verdict is Verdict.KERNEL


def test_stopped_helper_does_not_block_training():
    first = TreeSample(at_seconds=0.0, processes=(process(10), process(20, thread(20, "T"))))
    moved = process(10, thread(10, "R", run_ns=3_000_000_000, turns=9))
    last = TreeSample(at_seconds=4.0, processes=(moved, process(20, thread(20, "T"))))
    assert judge_window((first, last), training_pids=(10,)).verdict is Verdict.MOVING
    assert judge_window((first, last), training_pids=(20,)).verdict is Verdict.STOPPED


def test_work_that_waits_for_processors_is_starved():
    first = TreeSample(at_seconds=0.0, processes=(process(10),))
    held = process(10, thread(10, "R", run_ns=40_000_000, wait_ns=3_900_000_000, turns=10))
    found = judge_window((first, TreeSample(at_seconds=4.0, processes=(held,))))
    assert found.verdict is Verdict.STARVED
    assert found.given_share == pytest.approx(0.01, abs=0.001)


def test_ticking_thread_on_busy_machine_is_not_starved():
    first = TreeSample(at_seconds=0.0, processes=(process(10, thread(10), thread(11)),))
    ticks = thread(11, run_ns=8_000_000, wait_ns=2_000_000_000, turns=800)
    last = TreeSample(at_seconds=4.0, processes=(process(10, thread(10), ticks),), waits={10: lock(10), 11: lock(10)})
    assert judge_window((first, last)).verdict is not Verdict.STARVED


def test_repeatedly_failing_children_are_a_crash_loop():
    first = TreeSample(at_seconds=0.0, processes=(process(10),))
    last = TreeSample(at_seconds=4.0, processes=(process(10), process(30, parent=10)))
    failed = [ChildExit(pid=pid, name="python", at_seconds=1.0, code=1) for pid in (21, 22, 23)]
    ended = [ChildExit(pid=pid, name="cc1plus", at_seconds=1.0, code=0) for pid in range(21, 60)]
    asked = [ChildExit(pid=pid, name="python", at_seconds=1.0, signal=15) for pid in (21, 22, 23)]
    assert judge_window((first, last), failed).verdict is Verdict.CRASH_LOOP
    assert judge_window((first, last), ended).verdict is Verdict.MOVING
    assert judge_window((first, last), asked).verdict is Verdict.MOVING


def test_without_proc_a_quiet_tree_is_only_quiet():
    assert judge_window(window(process(10))).verdict is Verdict.TIMED
    assert judge_window(window(process(10, thread(10, "T")))).verdict is Verdict.STOPPED
