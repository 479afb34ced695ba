"""Signs of work that processor time does not show: stacks that move, and what a wait in the kernel is for."""

import pytest

from holdfast.core.observations import RankVerdict, TreeVerdict, Verdict, Wait, WaitTarget
from holdfast.supervisor.liveness import thread_signature, waits_for_server, working_thread
from holdfast.supervisor.processes import TreeSample
from tests.unit.supervisor.samples import process, thread


def kernel_wait(function: str) -> TreeVerdict:
    wait = Wait(kind="kernel", target=WaitTarget.KERNEL, name=function)
    return TreeVerdict(verdict=Verdict.KERNEL, main=RankVerdict(pid=12, verdict=Verdict.KERNEL, wait=wait))


@pytest.mark.parametrize("wchan", ["fuse_get_req", "request_wait_answer", "rpc_wait_bit_killable", "wait_for_response"])
def test_other_writes_do_not_excuse_a_dead_mount(wchan):
    assert waits_for_server(kernel_wait(wchan))


@pytest.mark.parametrize(
    "wchan", ["folio_wait_bit_common", "balance_dirty_pages", "jbd2_log_wait_commit", "io_schedule"]
)
def test_a_slow_local_disk_has_time_while_it_writes(wchan):
    assert not waits_for_server(kernel_wait(wchan))


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


def watched_thread(main_ns: int, other_ns: int, main_turns: int = 0, signals: int = 0) -> tuple[int, bool]:
    first = TreeSample(at_seconds=0.0, processes=(process(12, thread(12), thread(13)),))
    later = process(12, thread(12, run_ns=main_ns, turns=main_turns), thread(13, run_ns=other_ns, turns=9))
    return working_thread(later, first, 4.0, signals)


def test_busy_monitor_does_not_hide_stuck_main_thread():
    assert watched_thread(0, 200_000_000) == (12, True)


def test_working_thread_is_sampled_while_main_waits():
    assert watched_thread(1_000_000, 3_000_000_000, main_turns=3) == (13, False)


def test_working_main_thread_is_sampled():
    assert watched_thread(3_000_000_000, 3_900_000_000, main_turns=3) == (12, False)


def test_main_thread_woken_only_by_our_signals_is_idle():
    assert watched_thread(300_000, 200_000_000, main_turns=6, signals=6) == (12, True)
    assert watched_thread(300_000, 200_000_000, main_turns=7, signals=6) == (12, False)
