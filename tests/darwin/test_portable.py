"""Systems that show neither threads nor waits: what is still noticed, what is said, and that the child can be ended."""

import os
import sys
import time

import pytest

from holdfast.core.heartbeat import BeatWriter
from holdfast.core.observations import Verdict
from holdfast.core.runfolder import BEAT
from holdfast.supervisor import processes
from holdfast.supervisor.attempt_watch import AttemptWatch
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Launch, start_child
from holdfast.supervisor.clocks import Clocks
from holdfast.supervisor.ending import end_tree
from holdfast.supervisor.portable import PortableSystem
from tests.darwin import pretended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hides /proc of Linux")


@pytest.fixture
def hidden(monkeypatch):
    """A Linux without /proc."""
    system = PortableSystem()
    monkeypatch.setattr(processes, "_system_of", lambda platform: system)
    pretended._hidden[0] = True
    yield system
    pretended._hidden[0] = False


def test_says_what_it_cannot_see(hidden):
    assert hidden.blindness.system == "portable"
    assert {"waits", "threads", "exits", "descendants"} == set(hidden.blindness.unseen)


def watched(tmp_path, code: str, seconds: float):
    child = start_child(Launch((sys.executable, "-S", "-c", code), tmp_path, dict(os.environ), tmp_path / "attempt"))
    BeatWriter(tmp_path / "attempt" / BEAT).enter("step", 5, 100)
    now = [1000.0]
    watch = AttemptWatch(tmp_path / "attempt", child.pid, Budgets(), lambda: Clocks(now[0], now[0] + 5e6))
    try:
        while now[0] < 1000.0 + seconds:
            sample = watch.sample()
            if sample.is_hung:
                break
            now[0] += 1.0
    finally:
        watch.close()
    return child, sample


def test_silent_step_is_given_up_by_its_time(tmp_path, hidden):
    child, sample = watched(tmp_path, "import threading; threading.Event().wait()", 120)
    assert sample.is_hung
    assert sample.verdict.verdict is Verdict.TIMED
    assert not end_tree(tmp_path / "attempt", child, 0.5).left
    assert child.poll() is not None


def test_child_that_ignores_sigterm_is_killed(tmp_path, hidden):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(60)"
    child, _ = watched(tmp_path, code, 3)
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    end_tree(tmp_path / "attempt", child, 0.3)
    assert child.poll() == -9


def test_descendants_of_the_child_are_ended_with_it(tmp_path, hidden):
    code = "import subprocess; subprocess.run(['sleep', '61'])"
    child, _ = watched(tmp_path, code, 3)
    end_tree(tmp_path / "attempt", child, 0.5)
    assert child.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
