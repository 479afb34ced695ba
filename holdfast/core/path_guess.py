"""Suggests an existing path for a misspelled one, and tells a URL from a path."""

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

_CLOSE = 0.8  # `trian` and `train` pass; `cats` and `data` are far below
_MOST_NAMES = 1000
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
URL_ADVICE = "is a URL; download it first and give the path of the file"


def is_url(text: str) -> bool:
    """True for an address such as https://example.org/train.csv."""
    return _URL.match(text) is not None


def did_you_mean(path: Path, is_wanted: Callable[[Path], bool] = lambda path: True) -> tuple[str, ...]:
    """Suggest a neighbor of a missing path whose name is really similar; a shared extension is not enough."""
    try:
        shown = (entry for entry in path.parent.iterdir() if not entry.name.startswith("."))
        beside = sorted(entry.name for entry in shown if is_wanted(entry))[:_MOST_NAMES]
    except OSError:
        return ()
    alike = {name: (_likeness(_stem(path.name), _stem(name)), _likeness(path.name, name)) for name in beside}
    best = max(beside, key=alike.__getitem__, default="")
    return (f"did you mean {path.parent / best}?",) if best and alike[best][0] >= _CLOSE else ()


def _stem(name: str) -> str:
    """The name without extensions and without a trailing number, as in fit-1 and fit-2."""
    return re.sub(r"-\d+$", "", name.lower().partition(".")[0])


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
