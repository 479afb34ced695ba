"""Says where each rank of a distributed job stands, from its stack: the one that holds the others up first.

Reads: stacks/ of the attempt. A rank that waits for the others stands in a collective, and its stack says in which; the
stack of the one they wait for says where it was held up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from holdfast.supervisor.own_code import Frame, own_place, python_frames

_ENGINE = re.compile(r"holdfast[/\\]engine[/\\][\w./\\]+\.py$")
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^(?:torch|transformers|numpy|importlib)[/\\.]|^<")


def rank_lines(attempt: Path, ranks: Mapping[int, int], order: Iterable[int]) -> Iterator[str]:
    """One line for each rank whose stack was seen, those of `order` (pids) before others."""
    if len(ranks) < 2:
        return
    for pid in dict.fromkeys([*(pid for pid in order if pid in ranks), *sorted(ranks, key=lambda pid: ranks[pid])]):
        frames = python_frames(attempt, pid)
        if words := _words(attempt, frames):
            yield f"rank {ranks[pid]} (pid {pid}) stands at {words}"


def _words(attempt: Path, frames: list[Frame]) -> str:
    """The innermost line of the program or of our engine, and what it has called."""
    place = _engine_words(frames) or (own.words if (own := own_place(attempt, frames)) else "")
    place = place or next((_shown(frame) for frame in frames if not _LIBRARY.search(frame.file)), "")
    if not place:
        return _shown(frames[0]) if frames else ""
    inner = frames[0].function
    return place if place.endswith(f" in {inner}") else f"{place}, calling {inner}"


def _engine_words(frames: list[Frame]) -> str:
    for frame in frames:
        if found := _ENGINE.search(frame.file):
            return f"{found[0]}:{frame.line} in {frame.function}"
    return ""


def _shown(frame: Frame) -> str:
    return f"{'/'.join(Path(frame.file).parts[-3:])}:{frame.line} in {frame.function}"
