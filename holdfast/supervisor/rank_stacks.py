"""Says where each rank of a distributed job stands, from its stack: the one that holds the others up first.

Reads: stacks/ of the attempt. A rank that waits for the others stands in a collective, and its stack says in which; the
stack of the one they wait for says where it was held up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from holdfast.supervisor.own_code import Frame, own_place, python_frames

# All that is said between ranks goes through one module of our engine: the line that calls it says more.
_ENGINE = re.compile(r"holdfast[/\\]engine[/\\](?!ranks\.py)[\w./\\]+\.py$")
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^(?:torch|transformers|numpy|importlib)[/\\.]|^<")
_COLLECTIVES = re.compile(r"torch[/\\]distributed[/\\]distributed_c10d\.py$")
_WRAPPER = re.compile(r"(?:^|\.)wrapper$")


def rank_lines(attempt: Path, ranks: Mapping[int, int], order: Iterable[int]) -> Iterator[str]:
    """One line for each rank whose stack was seen, those of `order` (pids) before others."""
    if len(ranks) < 2:
        return
    first = [pid for pid in order if pid in ranks]
    for pid in dict.fromkeys([*first, *sorted(ranks, key=lambda pid: ranks[pid])]):
        frames = python_frames(attempt, pid)
        if frames:
            yield f"rank {ranks[pid]} (pid {pid}) {_words(attempt, frames, holds_up=pid in first[:1])}"


def _words(attempt: Path, frames: list[Frame], *, holds_up: bool) -> str:
    """The innermost line of the program or of our engine, and the collective or whatever it has called."""
    place, collective = _place(attempt, frames), _collective(frames)
    if collective and not holds_up:
        return f"waits for the others in {collective}, at {place}"
    inner = collective or frames[0].function
    is_there = inner.startswith("<") or place.endswith(f" in {inner}")
    return f"stands at {place}" + ("" if is_there else f", calling {inner}")


def _place(attempt: Path, frames: list[Frame]) -> str:
    for frame in frames:
        if found := _ENGINE.search(frame.file):
            return f"{found[0]}:{frame.line} in {frame.function}"
    if own := own_place(attempt, frames):
        return own.words
    return _shown(next((frame for frame in frames if not _LIBRARY.search(frame.file)), frames[0]))


def _collective(frames: list[Frame]) -> str:
    """The collective that a stack stands in, by the name it was called by; empty when it stands elsewhere."""
    found = ""
    for frame in frames:
        if _COLLECTIVES.search(frame.file):
            found = frame.function
        elif not _WRAPPER.search(frame.function):
            break
    return found


def _shown(frame: Frame) -> str:
    return f"{'/'.join(Path(frame.file).parts[-3:])}:{frame.line} in {frame.function}"
