"""Says where each rank of a distributed job stands, from its stack: the one that holds the others up first.

Reads: stacks/ of the attempt. A rank that waits for the others stands in a collective, and its stack says in which; the
stack of the one they wait for says where it was held up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.supervisor.own_code import Frame, own_place, python_frames
from holdfast.supervisor.verdict import Verdict, rank_words

if TYPE_CHECKING:
    from holdfast.supervisor.watch import Look

# All that is said between ranks goes through one module of our engine: the line that calls it says more.
_ENGINE = re.compile(r"holdfast[/\\]engine[/\\](?!ranks\.py)[\w./\\]+\.py$")
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^(?:torch|transformers|numpy|importlib)[/\\.]|^<")
_COLLECTIVES = re.compile(r"torch[/\\]distributed[/\\]distributed_c10d\.py$")
HELD = (Verdict.STOPPED, Verdict.DEBUGGED)  # wherever that happened to it
_WRAPPER = re.compile(r"(?:^|\.)wrapper$")


def told_by_stacks(attempt: Path, ranks: Mapping[int, int], look: "Look") -> "Look":
    """The same look with the ranks in the order that their stacks tell: first those that wait for none of the others.

    Two ranks that wait for a lock look alike from outside; the stack of one of them says that it is a collective's.
    """
    before = look.judged.standings
    standings = tuple(sorted(before, key=lambda one: one.verdict not in HELD and _is_waiting(attempt, one.pid)))
    if standings == before or len(ranks) < 2:
        return look
    why = look.because.removesuffix(rank_words(before, ranks.get))
    return replace(
        look, judged=replace(look.judged, standings=standings), because=why + rank_words(standings, ranks.get)
    )


def rank_lines(attempt: Path, ranks: Mapping[int, int], order: Sequence[int]) -> Iterator[str]:
    """One line for each rank whose stack was seen, those of `order` (pids) before others."""
    for pid in dict.fromkeys([*(pid for pid in order if pid in ranks), *sorted(ranks, key=lambda pid: ranks[pid])]):
        if frames := python_frames(attempt, pid):
            yield f"rank {ranks[pid]} (pid {pid}) {_words(attempt, frames, holds_up=pid in order[:1])}"


def _words(attempt: Path, frames: list[Frame], *, holds_up: bool) -> str:
    """The innermost line of the program or of our engine, and the collective or whatever it has called."""
    place, collective = _place(attempt, frames), _collective(frames)
    if collective and not holds_up:
        return f"waits for the others in {collective}, at {place}"
    inner = collective or frames[0].function
    calling = "" if inner.startswith("<") or place.endswith(f" in {inner}") else f", calling {inner}"
    return f"{'holds the others up: it ' if holds_up else ''}stands at {place}{calling}"


def _is_waiting(attempt: Path, pid: int) -> bool:
    return bool(_collective(python_frames(attempt, pid)))


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
