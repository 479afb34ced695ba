"""A line on stderr that says what is being done: it moves on a terminal, and comes now and then elsewhere."""

import shutil
import sys
import time

_MOVES_EVERY_SECONDS = 0.2
_LINE_EVERY_SECONDS = 10
_SHOWN_AFTER_SECONDS = 0.4


class Waiting:
    """What is being done, how much of it, and for how long; on a terminal with the time that is left."""

    def __init__(self, *, quiet: bool = False, says_start: bool = False) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._quiet = quiet
        self._says_start = says_start  # what always takes seconds is told of at once
        self._what, self._begun, self._shown_at, self._width = "", 0.0, 0.0, 0

    def show(self, what: str, done: int, whole: int | None) -> None:
        """Show how far something is."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._begun, self._shown_at = what, now, now
        every = _MOVES_EVERY_SECONDS if self._is_terminal else _LINE_EVERY_SECONDS
        is_early = now - self._begun < _SHOWN_AFTER_SECONDS or now - self._shown_at < every
        if self._quiet or (is_early and not self._says_start):
            return
        self._shown_at, self._says_start = now, False
        text = f"... {what}" + _amount(what, done, whole) + f", {now - self._begun:.0f} s"
        if whole and 0 < done < whole:
            text += f", about {(now - self._begun) * (whole - done) / done:.0f} s left"
        if self._is_terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._width and self._is_terminal:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def _amount(what: str, done: int, whole: int | None) -> str:
    if what.startswith("downloading"):
        return f": {done / 1e6:.1f} MB" + (f" of {whole / 1e6:.1f} MB" if whole else "")
    if not done and not whole:
        return ""
    return f": {done:,}" + (f" of {whole:,}" if whole else "")
