"""Writes numbers and names for people."""

import difflib
from collections.abc import Iterable


def human_bytes(count: float) -> str:
    """Write a byte count with one decimal, in units of 1000 as disks and memory are sold."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Write a time in its two largest units: `41 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, large, small, small_size in ((86_400, "d", "h", 3600), (3600, "h", "min", 60), (60, "min", "s", 1)):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: `1 finding`, `3 findings`, `2 processes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def processes_words(count: int) -> str:
    """A number of processes as text; empty for one."""
    return plural(count, "process") if count > 1 else ""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a misspelled one; None if none is close."""
    guesses = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return guesses[0] if guesses else None


def option(setting: str) -> str:
    """The name of a setting on the command line."""
    return {"data": "DATA", "from_run": "--from"}.get(setting, "--" + setting.lstrip("-").replace("_", "-"))
