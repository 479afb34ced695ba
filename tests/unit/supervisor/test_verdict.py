"""The verdict on windows recorded from real programs, and on made-up ones that are hard to bring about."""

import dataclasses

import pytest

from holdfast.supervisor.child_exits import ChildExit
from holdfast.supervisor.processes import TreeSample, Wait
from holdfast.supervisor.verdict import Verdict, judge_window, stand_all
from tests.unit.supervisor.samples import RECORDED, lock, process, recorded, thread, window


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_window_keeps_its_verdict(name):
    samples, told = recorded(name)
    judged = judge_window(samples, fronts=told["fronts"])
    assert judged.verdict.name == told["verdict"]
    assert judged.words == told["words"]


def test_deadlocked_worker_and_its_waiter_are_named():
    samples, _ = recorded("loader_lock")
    assert "(pt_data_worker) waits for a lock that nobody can release" in judge_window(samples).words
    assert judge_window(samples).words.endswith(f"process {samples[-1].processes[0].pid} waits for it")


def test_the_rank_outside_the_collective_comes_first():
    samples, told = recorded("rank_asleep")
    culprit, victim = stand_all(*samples, told["fronts"])
    assert (culprit.verdict, victim.verdict) == (Verdict.SLEEPING, Verdict.TIMED)


def test_threads_that_wait_for_each_other_are_a_deadlock():
    samples = window(process(10, thread(10), thread(11)), t10=lock(10), t11=lock(10))
    assert judge_window(samples).verdict is Verdict.DEADLOCK


def test_sleeping_thread_may_release_a_waiter():
    sleeps = Wait(kind="sleep", words="sleeps")
    samples = window(process(10, thread(10), thread(11)), t10=lock(10), t11=sleeps)
    judged = judge_window(samples)
    assert judged.verdict is Verdict.SLEEPING
    assert not judged.is_own_timer


def test_a_monitor_of_a_library_wakes_nobody():
    ticks = Wait(kind="timed", words="waits for a lock, for a limited time")
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
    child = Wait(kind="tree", words="waits for its child", wakers=frozenset({20}))
    net = Wait(kind="net", words="waits for 10.0.0.1:443", silent_seconds=70.0)
    samples = window(process(10), process(20, parent=10), t10=child, t20=net)
    judged = judge_window(samples)
    assert judged.verdict is Verdict.WAIT_NET
    assert judged.words == (
        "waits for its child, while process 20 (python) waits for 10.0.0.1:443, nothing received for 70 s"
    )


def test_serving_main_thread_waits_for_the_network():
    listens = Wait(kind="listen", words="waits for a connection at 0.0.0.0:6006")
    assert (
        judge_window(window(process(10, thread(10), thread(11)), t10=lock(10), t11=listens)).verdict is Verdict.DEADLOCK
    )
    assert judge_window(window(process(10), t10=listens)).verdict is Verdict.WAIT_NET


def test_driver_thread_wakes_nobody_but_main_may_wait_for_card():
    card = Wait(kind="device", words="waits for the device /dev/nvidia0")
    assert judge_window(window(process(10, thread(10), thread(11)), t10=lock(10), t11=card)).verdict is Verdict.DEADLOCK
    assert judge_window(window(process(10), t10=card)).verdict is Verdict.KERNEL


def test_training_process_counts_not_the_launcher():
    sleeps = Wait(kind="sleep", words="sleeps")
    samples = window(process(10), process(20, parent=10), t10=sleeps, t20=lock(20))
    assert judge_window(samples, fronts=(20,)).verdict is Verdict.DEADLOCK
    assert judge_window(samples).verdict is Verdict.SLEEPING


def test_slow_page_faults_are_a_kernel_wait():
    samples = window(process(10, thread(10, "D")), t10=Wait(kind="kernel", words="waits in the kernel (fuse_get_req)"))
    assert judge_window(samples).verdict is Verdict.KERNEL


def test_stopped_helper_does_not_block_training():
    first = TreeSample(at_seconds=0.0, processes=(process(10), process(20, thread(20, "T"))))
    moved = process(10, thread(10, "R", run_ns=3_000_000_000, turns=9))
    last = TreeSample(at_seconds=4.0, processes=(moved, process(20, thread(20, "T"))))
    assert judge_window((first, last), fronts=(10,)).verdict is Verdict.MOVING
    assert judge_window((first, last), fronts=(20,)).verdict is Verdict.STOPPED


def test_work_that_waits_for_processors_is_starved():
    first = TreeSample(at_seconds=0.0, processes=(process(10),))
    held = process(10, thread(10, "R", run_ns=40_000_000, wait_ns=3_900_000_000, turns=10))
    judged = judge_window((first, TreeSample(at_seconds=4.0, processes=(held,))))
    assert judged.verdict is Verdict.STARVED
    assert judged.given_share == pytest.approx(0.01, abs=0.001)


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
