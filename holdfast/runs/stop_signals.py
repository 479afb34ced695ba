"""Turns signals into stop requests."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from holdfast.supervisor.attempt import StopRequest

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A stop was requested by a signal while there was nothing to save yet."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


class AtOnce(StopRequest):
    """A stop request that raises `Stopped` immediately, while there is nothing to save yet."""

    def ask(self, number: int = 0) -> NoReturn:
        """Stop without waiting for a good moment."""
        raise Stopped(number or signal.SIGINT)


def exit_code_of(asked: KeyboardInterrupt) -> int:
    """What a shell reports for a process that the signal ended; Python's own KeyboardInterrupt is Ctrl-C."""
    return 128 + (asked.number if isinstance(asked, Stopped) else signal.SIGINT)


@contextmanager
def asked_by_signals(stop: StopRequest) -> Iterator[None]:
    """Turn Ctrl-C, a closed terminal and SIGTERM into a stop request."""
    heard = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = [(number, signal.signal(number, lambda asked, _: stop.ask(asked))) for number in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
