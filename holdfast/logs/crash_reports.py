"""Reads reports that must be read as a whole: macOS `.ips` JSON, the call tree of `sample`, load addresses."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from holdfast.core.evidence import Frame, Stack, Text
from holdfast.logs.log_lines import Line

_DECODER = json.JSONDecoder()
_FRAMES = re.compile(r'"(?P<key>frames|lastExceptionBacktrace)"\s*:\s*\[')
_LOOSE_FRAME = re.compile(r'\{\s*"imageOffset"')
_IMAGES = re.compile(r'"usedImages"\s*:\s*\[')
_FAULTING = re.compile(r'"faultingThread"\s*:\s*(\d{1,9})\b')
_TRIGGERED = re.compile(r'"triggered"\s*:\s*true')
_NAME = re.compile(r'"(?:name|queue)"\s*:\s*"([^"]*)"')
_SAID = re.compile(r'"(?:asi|asiBacktraces)"\s*:\s*(?=\{)')
_SIGNAL = re.compile(r'"(?:signal"\s*:\s*"(?=SIG)|indicator"\s*:\s*")([^"]+)"')

# 0x104c5c000 -        0x104c5ffff +python3.11 (0) <UUID> /opt/lib/libomp.dylib
_IMAGE_LINE = re.compile(r"^\s*(0x[0-9a-fA-F]+) -\s+(0x[0-9a-fA-F]+|\?\?\?)\s+\+?(\S+).*$")

# + 2345 __psynch_cvwait  (in libsystem_kernel.dylib) + 8  [0x1a2b3c]
_CALL = re.compile(
    r"^(?P<depth>[\s+!:|*]*)(?P<count>\d+)\s+(?P<function>\S.*?)\s+\(in (?P<module>[^)]+)\)"
    r"(?:(?: \+ [\d,.]+)+)?(?:\s+\[(?P<address>0x[0-9a-f]+))?"
)
_CALLING_THREAD = re.compile(r"^(?P<depth>\s*)\d+ (?P<thread>Thread_\w+.*)$")
_END_OF_TREE = re.compile(r"Total number in stack|Sort by top of stack|Binary Images")


def read_ips(text: Text) -> Iterator[Stack]:
    """Find the threads of an `.ips` crash report, whole or in pieces. `text` is the raw report."""
    joined = text.joined
    if '"imageOffset"' not in joined:
        return
    images = [_Image.of(entry) for match in _IMAGES.finditer(joined) for _, entry in _objects(joined, match.end())[0]]
    faulting = {int(match[1]) for match in _FAULTING.finditer(joined)}
    done, thread_number = 0, 0
    for match in _FRAMES.finditer(joined):
        entries, end = _objects(joined, match.end())
        head = joined[max(done, match.start() - 20_000) : match.start()]
        is_thread = match["key"] == "frames"
        crashed = bool(_TRIGGERED.search(head)) or (is_thread and thread_number in faulting)
        name = _NAME.findall(head.rpartition("{")[2])
        thread = f"Thread {thread_number}{' Crashed' if crashed else ''}{': ' + name[-1] if name else ''}"
        frames = _ips_frames(entries, images, text)
        done, thread_number = end, thread_number + is_thread
        if frames:
            yield Stack(thread if is_thread else "last exception", frames, crashed)
    if not done and (loose := _LOOSE_FRAME.search(joined)):
        frames = _ips_frames(_objects(joined, loose.start())[0], images, text)
        if frames:
            yield Stack("", frames)


def ips_facts(text: Text) -> tuple[list[Line], list[Line]]:
    """How a process ended by its `.ips` report: the signal, and the system's messages."""
    exits, said = list[Line](), list[Line]()
    if '"imageOffset"' in text.joined or '"bug_type"' in text.joined:
        for match in _SIGNAL.finditer(text.joined):
            exits.append((text.line_at(match.start()), match[1]))
        for match in _SAID.finditer(text.joined):
            try:
                words, _ = _DECODER.raw_decode(text.joined, match.end())
            except (ValueError, RecursionError):
                continue
            number = text.line_at(match.start())
            said += [(number, line) for line in _strings(words) for line in line.splitlines() if line.strip()]
    return exits, said


def read_samples(lines: Iterable[Line]) -> Iterator[Stack]:
    """Find the stacks in the call tree that macOS `sample` prints: one per leaf, innermost frame first."""
    thread, path, is_over = "", list[tuple[int, Frame]](), False
    for number, line in lines:
        if not is_over and (call := _CALL.match(line)):
            depth = len(call["depth"])
            if path and (depth < path[-1][0] or depth == path[-1][0] > 0):
                yield _leaf(thread, path)
            # A list without indentation is one stack, outermost first.
            path = [step for step in path if step[0] < depth or not depth]
            address = int(call["address"], 16) if call["address"] else None
            path.append((depth, Frame(call["function"], call["module"], address, line=number)))
        elif (head := _CALLING_THREAD.match(line)) or _END_OF_TREE.search(line):
            if path:
                yield _leaf(thread, path)
            thread, path, is_over = head["thread"].strip() if head else "", [], head is None
    if path:
        yield _leaf(thread, path)


def with_load_addresses(stacks: Iterable[Stack], lines: Iterable[Line]) -> list[Stack]:
    """Add to each frame the load address of its library, from the list of binary images in the report."""
    found, images = list(stacks), _image_lines(lines)
    if not images:
        return found
    return [replace(stack, frames=tuple(_placed(frame, images) for frame in stack.frames)) for stack in found]


@dataclass(frozen=True, slots=True)
class _Image:
    """A library as the report lists it."""

    name: str
    base: int
    end: int

    @classmethod
    def of(cls, entry: dict[str, object]) -> "_Image":
        base, size = entry.get("base"), entry.get("size")
        name = entry.get("name") or str(entry.get("path") or "").rpartition("/")[2]
        start = base if isinstance(base, int) else 0
        return cls(str(name), start, start + (size if isinstance(size, int) else 0))


def _objects(joined: str, at: int) -> tuple[list[tuple[int, dict[str, object]]], int]:
    """Decode the JSON objects of a list, each with its offset, and where they end or are cut off."""
    found: list[tuple[int, dict[str, object]]] = []
    while at < len(joined):
        while at < len(joined) and joined[at] in " \t\r\n,":
            at += 1
        if at >= len(joined) or joined[at] != "{":
            break
        start = at
        try:
            value, at = _DECODER.raw_decode(joined, start)
        except (ValueError, RecursionError):
            break
        found.append((start, value))
    return found, at


def _ips_frames(entries: list[tuple[int, dict[str, object]]], images: list[_Image], text: Text) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    for start, entry in entries:
        index, offset = entry.get("imageIndex"), entry.get("imageOffset")
        if not isinstance(index, int) or not isinstance(offset, int):
            continue
        image = images[index] if 0 <= index < len(images) else None
        frames.append(
            Frame(
                function=str(entry.get("symbol") or "??"),
                module=image.name if image else "",
                address=image.base + offset if image else None,
                # Without the list of images, their numbers still distinguish two copies of a library.
                image_base=image.base if image else index,
                line=text.line_at(start),
            )
        )
    return tuple(frames)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _leaf(thread: str, path: list[tuple[int, Frame]]) -> Stack:
    return Stack(thread, tuple(frame for _, frame in reversed(path)))


def _image_lines(lines: Iterable[Line]) -> list[_Image]:
    images: list[_Image] = []
    for _, line in lines:
        if " - " in line and (match := _IMAGE_LINE.match(line)):
            base, end = int(match[1], 16), 0 if match[2] == "???" else int(match[2], 16)
            images.append(_Image(match[3], base, max(end, base)))
    return images


def _placed(frame: Frame, images: list[_Image]) -> Frame:
    if frame.image_base is None and frame.address is not None:
        for image in images:
            if image.base <= frame.address <= image.end:
                return replace(frame, image_base=image.base)
    return frame
