"""Takes signals as the wish to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from holdfast.supervisor.attempt import StopRequest

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """Asked to stop while there is nothing to save yet, by whichever signal."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


class AtOnce(StopRequest):
    """Ends what goes on with `Stopped`, wherever it is: the wish to stop while there is nothing to save yet."""

    def ask(self, number: int = 0) -> NoReturn:
        """Stop, without waiting for a good moment."""
        raise Stopped(number or signal.SIGINT)


def exit_code_of(asked: KeyboardInterrupt) -> int:
    """What a shell reports for a process that was ended by the signal; Python's own exception is of Ctrl-C."""
    return 128 + (asked.number if isinstance(asked, Stopped) else signal.SIGINT)


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
