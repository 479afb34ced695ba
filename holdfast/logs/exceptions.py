"""Joins each exception of a log with its traceback: its type, its message, its frames and their source lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.core.evidence import Frame, Raised, Stack
from holdfast.logs.log_lines import Line

_EXCEPTION = re.compile(
    r"(?:[\w.]+\.)?(?P<kind>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Iteration|Lost|Timeout)|[A-Z]\w+)"
    r"(?:: ?(?P<message>.*)|)$"
)
_ARROW = re.compile(
    r"^\s*-+>\s*(?P<at>\d+)\s?(?P<source>.*)$|^\s*[│|┃] ❱ +(?P<rich_at>\d+) [│|] ?(?P<rich>.*?)\s*[│|┃]?$"
)
_NEXT_FRAME = re.compile(r'\s*(?:File )?"[^"]+", line \d+|^\s*[~^]+\s*$')
_WITHIN = 14  # lines of source that a notebook shows around the one that failed
_MOST = 200


def read_exceptions(errors: Iterable[Line], stacks: Sequence[Stack], lines: Iterable[Line]) -> tuple[Raised, ...]:
    """Every exception with the nearest traceback before it; without one, an exception has no frames."""
    pythons = sorted(
        (stack for stack in stacks if any(_is_python(frame) for frame in stack.frames)), key=lambda stack: _end(stack)
    )
    if not pythons:
        return tuple(_named(errors))[:_MOST]
    text = dict(lines)
    found: list[Raised] = []
    used = 0
    for raised in _named(errors):
        before = [stack for stack in pythons[used:] if _end(stack) < raised.line]
        used += len(before)
        frames: tuple[Frame, ...] = ()
        sources: tuple[str, ...] = ()
        if before:
            seen = [_with_source(frame, text) for frame in before[-1].frames]
            frames, sources = tuple(frame for frame, _ in seen), tuple(source for _, source in seen)
        found.append(Raised(raised.line, raised.kind, raised.message, frames, sources))
        if len(found) == _MOST:
            break
    return tuple(found)


def _named(errors: Iterable[Line]) -> Iterator[Raised]:
    for number, line in errors:
        if match := _EXCEPTION.match(line):
            yield Raised(number, match["kind"], (match["message"] or "").strip())


def _is_python(frame: Frame) -> bool:
    return frame.address is None and (frame.module.endswith((".py", ">")) or "In" in frame.module)


def _end(stack: Stack) -> int:
    return max(frame.line for frame in stack.frames)


def _with_source(frame: Frame, text: Mapping[int, str]) -> tuple[Frame, str]:
    """The frame, with its line number if only the source says it, and the source line."""
    following = text.get(frame.line + 1, "")
    if frame.at and following.startswith("    ") and not _NEXT_FRAME.match(following):
        return frame, following.strip()
    for number in range(frame.line + 1, frame.line + _WITHIN):
        if arrow := _ARROW.match(text.get(number, "")):
            at = int(arrow["at"] or arrow["rich_at"])
            found = Frame(frame.function, frame.module, frame.address, frame.image_base, frame.line, frame.at or at)
            return found, (arrow["source"] or arrow["rich"] or "").strip()
    return frame, ""
