import os
import signal

import pytest

from holdfast.engine.sigterm import Interrupted, StopSignal


def test_sigterm_interrupts_only_interruptible_work():
    stopping = StopSignal(grace_seconds=1000)
    with stopping.watched():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.is_asked  # and nothing was raised
        with pytest.raises(Interrupted), stopping.interruptible():
            raise AssertionError("must not be reached")


def test_sigterm_interrupts_a_running_computation():
    stopping, reached = StopSignal(grace_seconds=1000), []

    def step() -> None:
        with stopping.interruptible():
            reached.append("begun")
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("after")

    with stopping.watched(), pytest.raises(Interrupted):
        step()
    assert reached == ["begun"]


def test_previous_sigterm_handler_is_restored():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal().watched():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
