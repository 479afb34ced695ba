"""How long-running work reports its progress."""

from typing import Literal, Protocol

Unit = Literal["", "bytes"]


class Progress(Protocol):
    """Called with the current activity, the amount done, the total if known, and the unit of both."""

    def __call__(self, what: str, done: int, total: int | None, unit: Unit = "", /) -> None:
        """Show the progress."""


def no_progress(what: str, done: int, total: int | None, unit: Unit = "") -> None:
    """Show nothing."""
