"""Takes signals as the wish to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.supervisor.attempt import StopRequest

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def asked_by_signals(stop: StopRequest) -> Iterator[None]:
    """Take Ctrl-C, a closed terminal and SIGTERM as the wish to stop."""
    heard = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = [(number, signal.signal(number, lambda asked, _: stop.ask(asked))) for number in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
