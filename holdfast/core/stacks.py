"""Reads stack reports line by line: Python tracebacks (plain, notebook, rich) and faulthandler, py-spy, gdb, lldb, the
frames that torch, glibc, abseil and Windows print, and those of macOS crash reports.

`core.frameshapes` knows how each tool writes a frame; here frames become stacks. `core.crashreports` adds what needs
the whole report: `.ips` JSON, the call tree of `sample`, load addresses.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from holdfast.core.evidence import Frame, Stack
from holdfast.core.frameshapes import Shape, read_frame
from holdfast.core.loglines import Line

_THREAD = re.compile(r"\s*(?:(?:\* )?(?:Current thread|Thread|thread #)\s?\S*\b|Stack \(most recent call first\))")
_CRASH = re.compile(r"Crashed|(?:stop reason =|received) (?:EXC_(?!BREAKPOINT)|signal SIG(?!STOP|TRAP|INT))")
_FATAL_REPORT = re.compile(r"Fatal Python error|Windows fatal exception|received signal SIG(?!INT|STOP)|\*\*\* SIG")
_ELLIPSIS = re.compile(
    r"^\s*(?:\.\.\.|…|\[Previous line repeated|(?:#\d+\s+)?<signal handler called>|---Type <return>)"
)


def read_stacks(lines: Iterable[Line]) -> Iterator[Stack]:
    """Find every stack in the lines of one speaker. Frames that follow each other belong to one thread."""
    report = _Report()
    waiting = ""  # the start of a path that a box broke over two lines
    for number, line in lines:
        whole = _rejoined(waiting, line) if waiting else line
        waiting = line if _is_broken_path(line) else ""
        found = read_frame(number, whole)
        if found is None and report.frames and _goes_on(report, number, line):
            continue
        yield from report.take(found, line)
    yield from report.close()


@dataclass(slots=True)
class _Report:
    """The stack that is being read."""

    thread: str = ""
    is_fatal: bool = False  # a fatal error was announced and its thread is still to come
    shape: Shape | None = None
    index: int = -1
    frames: list[Frame] = field(default_factory=list)

    def take(self, found: tuple[Shape, int, Frame] | None, line: str) -> Iterator[Stack]:
        """Add a frame, or note what a line between stacks says; give the stack that ends here."""
        if found is None:
            yield from self.close()
            if _FATAL_REPORT.search(line):
                self.is_fatal = True
            if _THREAD.match(line) and len(line) < 300:
                self.thread = line.strip()
            return
        shape, index, frame = found
        if self.shape and (shape.tool != self.shape.tool or 0 <= index <= self.index):
            yield from self.close()
        self.shape, self.index = shape, index
        self.frames.append(frame)

    def close(self) -> Iterator[Stack]:
        """Give the stack read so far, innermost frame first."""
        if self.frames and self.shape:
            frames = reversed(self.frames) if self.shape.is_outermost_first else self.frames
            yield Stack(self.thread, tuple(frames), crashed=self._is_crashed())
            self.thread, self.shape, self.index, self.frames = "", None, -1, []

    def _is_crashed(self) -> bool:
        if _CRASH.search(self.thread):
            return True
        is_native = self.shape is not None and self.shape.tool not in ("traceback", "notebook", "rich")
        return (
            self.is_fatal and is_native and (not self.thread or self.thread.startswith(("Current thread", "Stack (")))
        )


def _is_last(line: str) -> bool:
    """True for the line that ends a traceback, where there is no source between it and the last frame."""
    return bool(re.match(r"[\w.]+(?:: |$)", line)) and not line.endswith(":")


def _goes_on(report: _Report, number: int, line: str) -> bool:
    """True for a line that stands between two frames of one stack, such as the source of a frame."""
    assert report.shape
    tool, indented = report.shape.tool, line.startswith(("    ", "\t"))
    if _ELLIPSIS.match(line):
        return True
    if tool == "traceback":
        return indented or not line.strip() or (number - 1 == report.frames[-1].line and not _is_last(line))
    if tool == "notebook":
        return not line.strip() or bool(re.match(r"\s*-*>?\s*\d+(?:\s|$)|\s+", line))
    if tool == "rich":
        return line.lstrip().startswith(("│", "|", "┃"))
    if tool == "gdb" and indented:
        if (place := re.match(r"\s+(?:.*\) )?(?:from|at) (?P<module>\S+)", line)) and not report.frames[-1].module:
            report.frames[-1] = replace(report.frames[-1], module=place["module"])
        return True
    return indented and tool in ("py-spy", "torch", "c-stack")


def _is_broken_path(line: str) -> bool:
    return bool(re.match(r"\s*[│┃] (?:[~/<]|[A-Za-z]:\\)", line)) and not re.search(r":\d+ in [\w<]", line)


def _rejoined(start: str, line: str) -> str:
    """A path that a box broke over two lines, in one piece again; the line itself when it is no such path."""
    head, tail = start.strip().strip("│┃").strip(), line.strip().strip("│┃").strip()
    for whole in (f"│ {head}{tail}", f"│ {head} {tail}"):
        if re.match(r"│ \S.*:\d+ in [\w.<>]+$", whole):
            return whole
    return line
