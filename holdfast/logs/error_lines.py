"""Finds the lines in which a program reports a failure: exceptions, and the last messages of native code.

Lines that only mention an exception are left out: warnings, advice, log levels below error, exceptions that Python
ignored, and source code in tracebacks. The first line found is usually the cause; later ones are its consequences.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto

from holdfast.core.evidence import Evidence, Passage
from holdfast.logs.log_lines import Line

_LONGEST_MESSAGE_LINES = 60
_LONGEST_FLUSH_LINES = 20  # of these, not indented

# Types that are recognized without a traceback before them. "Error" alone only at the start of a line.
_PATH = r"(?:[A-Za-z_]\w*(?:\.|::))*"
_NAMED = (
    rf"{_PATH}(?:[A-Z_]\w*(?:Error|Exception|Interrupt|Exit|Failure|Failed|Timeout|TimedOut|Lost|Exceeded|OutOfMemory"
    r"|Expired|Invalid|NotFound|NotImplemented|Unsupported|Refused)|StopIteration|StopAsyncIteration|SystemExit"
    r"|BrokenProcessPool|ExceptionGroup)"
    r"|(?:[a-z_]\w*\.)+(?:Empty|Full|Unsupported|Timeout|Failure|error|timeout|gaierror|herror)"
)
_EXCEPTION = re.compile(
    rf"\s*(?P<type>{_NAMED}|(?:[a-z_]\w*\.)*(?:Error|Exception))(?:\(\w+\))?(?::(?!:)\s*(?P<message>.*)|\s*)$"
)
_LAST_OF_TRACEBACK = re.compile(
    r"(?!(?:Epoch|Step|Process|Note|Loading|Train|Val|Test)\b)(?P<type>(?:\w+\.)*[A-Z]\w*)(?::\s+(?P<message>.*)|:?\s*)$"
)
_INSIDE = re.compile(rf"(?:^|[\s(\[\"'`:])(?P<type>{_NAMED})(?::\s+(?P<message>\S.*)|\((?P<quoted>[bruf]?[\"'].*))$")
_METRIC = re.compile(r"(?!\s*Bus)[^:]*rror[^:]*:\s+[-+\d.e]+\s*%?\s*$")  # "MeanSquaredError: 0.12"
_NUMBERED = ("KeyError", "IndexError", "SystemExit", "AssertionError", "ValueError", "RuntimeError", "OSError")

_TRACEBACK = re.compile(r"Traceback \(most recent call")
_FRAME = re.compile(
    r'(?P<indent>\s*)(?:File )?"?[^\s"][^"]*", line \d+|\s*File \S.*:\d+, in |\s*(?:Cell|Input) In ?\['
    r"|\S+ in [\w.<>]+\(|\s*│ \S+:\d+ in "
)
# Source as notebooks ("-> 12   raise X("), rich ("│ ❱ 12 │   raise X(") and pytest (">    raise X(") quote it.
_SOURCE = re.compile(r"\s*-+> \d+ |\s*[│|]\s+(?:[❱>]\s+)?\d+ [│|]|\s*[│╭╰]|>\s{4,}")
_MAYBE_SOURCE = re.compile(r"\s*\d+(?:\s{2,}|$)|\s*(?:raise|except|return|assert)\b|\s*[~^]+\s*$")
# Raised where it cannot be caught, in a __del__ or at exit: Python reports it and continues.
_IGNORED = re.compile(r"\s*Exception ignored (?:in|on|while)\b|\s*Exception \w+: .* ignored$")
_CHAIN = re.compile(r"During handling of the above|The above exception was the direct|Original Traceback")

_WARNING = re.compile(r"(?:^|[\s:(])\w*Warning(?::\s|\s*$)|warnings\.warn\(|^\s*(?:WARN|warning)\b|: warning: ")
_LEVEL = re.compile(r"(?:^|[\s\[(<|:-])(DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)(?=[\s\])>|:/]|$)")
# "[E ProcessGroupNCCL.cpp:475]" and "E1119 08:26:02.7 9 torch/distributed/x.py:882]" of torch,
# "W0604 12:00:00.1 9 x.cc:3]" of glog, "E tensorflow/core/x.cc:64]"
_NATIVE_LEVEL = re.compile(
    r"(?P<torch>\[[IWEF][\s\d:.]*\S+\.(?:cpp|cu|h|hpp):\d+\]|[IWEF]\d{4} [\d:.]+ \d+ \S*torch/\S+\.py:\d+\])"
    r"|\[?[IWEF]\d{4} |:? ?[IWEF] \w+/\S+\.cc:\d+\]"
)
_ADVICE = re.compile(
    r"(?i)\b(?:if you|to avoid|may|might|could|can|will|would|should|such as|instead of|e\.g\.|for example|in case"
    r"|raises?|raising|except|catch|ignor\w+|suppress\w*|expect\w*|retry\w*|see|when|like|print|killing|sending|handler)\b[^:]*$"
)
_NO_FAILURE = re.compile(r"pip's dependency resolver|\bERROR:? (?:rate|count)\b|\b0 ERRORS?\b", re.IGNORECASE)

# Messages of native code before it ends the process, and of the system afterwards.
_FATAL = re.compile(
    r"Fatal Python error|Windows fatal exception|terminate called|^\s*what\(\): |libc\+\+abi|Terminating app due to"
    r"|terminating (?:due to|with) uncaught|failed assertion|Assertion .*\bfailed|INTERNAL ASSERT FAILED|Check failed: "
    r"|panicked at|\bOMP: (?:System )?[Ee]rror|libgomp: |forrtl: |MKL FATAL ERROR|LLVM ERROR|OpenBLAS .*failed"
    r"|THCudaCheck FAIL|NVRM: Xid|(?:^|\s)(?:free|malloc|realloc|munmap_chunk)\(\): |malloc: \*\*\* error"
    r"|double free or|corrupted (?:size|double-linked|unsorted)|stack smashing detected|pure virtual method called"
    r"|objc\[\d+\]: .*(?:fork|[Cc]rash)|crashed on child side of fork|BUG IN (?:CLIENT|LIB)|libprotobuf (?:FATAL|ERROR)"
    r"|\*\*\* (?:Error in|Aborted at|Signal \d|SIG[A-Z]+|Process received signal)|\bSIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL)\b"
    r"|\(core dumped\)|[Ss]egmentation fault|Abort trap|\b[Bb]us error\b|[Ii]llegal (?:hardware )?instruction\b"
    r"|Floating point exception|^\s*Killed(?:: 9)?\s*$|: Killed\s+\S|zsh: (?:killed|abort)|\boom-kill"
    r"|Out of memory: Kill|^\[\d+\]\s+[+-]?\s*\d+ (?:abort|killed)\b|\bOOMKilled\b|dyld(?:\[\d+\])?: "
    r"|[Ll]ibrary not loaded: |symbol lookup error: |error while loading shared libraries: "
    r"|(?:^|: )(?:fatal )?error(?::| C\d+:| #\d+:) |^Error\b.*: |^\w[\w+]*: (?:fatal|error|build stopped)[ :]"
)


class _Rest(Enum):
    """Which lines after an error belong to it."""

    NONE = auto()
    INDENTED = auto()
    ALL = auto()


def find_errors(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines in which something failed, in order; an exception is "Type: message".

    The lines are those of one speaker, as `log_lines.by_speaker` gives them.
    """
    traceback, message = _Traceback(), _Message()
    is_announced = is_ignored = False  # whether the next exception, or the current one, was ignored
    for number, raw in lines:
        if traceback.takes(raw):
            message.end()
            continue
        line = _unwrapped(raw)
        if _IGNORED.match(line):
            is_announced = not line.endswith("ignored")
            message.end()
            continue
        found = _error(line, traceback.is_open)
        if found:
            text, rest = found
            traceback.is_open = False
            message.begin(rest)
            is_ignored, is_announced = is_announced, False
            if not is_ignored:
                yield number, text
        elif message.takes(line):
            if line.strip() and not is_ignored:
                yield number, line.rstrip()
        elif line.strip():
            traceback.is_open = is_announced = False


def first_lines(evidence: Evidence) -> list[Passage]:
    """The errors without the further lines of their messages; with them if the last error's first line has no text."""
    raised = {one.line for one in evidence.exceptions}
    errors = [error for error in evidence.errors if not error.text.startswith(" ")]
    first = [error for error in errors if error.line in raised or _error(error.text, in_traceback=False)]
    return errors if first and first[-1].text.endswith(":") else first or errors


class _Traceback:
    """Follows a traceback, so that its source lines are not taken for errors."""

    def __init__(self) -> None:
        self.is_open = False
        self._indent: int | None = None  # of the last frame line
        self._is_after_frame = False

    def takes(self, line: str) -> bool:
        """True for a line that belongs to a traceback but not to the error message."""
        after_frame, self._is_after_frame = self._is_after_frame, False
        if _TRACEBACK.search(line) or _CHAIN.match(line):
            self.is_open, self._indent = True, None
            return True
        if frame := _FRAME.match(line):
            self.is_open, self._is_after_frame = True, True
            self._indent = None if frame["indent"] is None else len(frame["indent"])
            return True
        if _SOURCE.match(line):
            self.is_open = True
            return True
        return self.is_open and self._is_source(line, after_frame)

    def _is_source(self, line: str, after_frame: bool) -> bool:
        if _MAYBE_SOURCE.match(line):
            return True
        if self._indent is None or not line.strip():
            return False
        if len(line) - len(line.lstrip()) > self._indent:
            return True
        # Without indentation, the line after a frame is its source.
        return after_frame and self._indent == 0 and not _EXCEPTION.match(line)


class _Message:
    """Follows an error's message over its further lines."""

    def __init__(self) -> None:
        self._rest, self._lines_left, self._flush_left, self._after_blank = _Rest.NONE, 0, 0, False

    def begin(self, rest: _Rest) -> None:
        self._rest, self._after_blank = rest, False
        self._lines_left, self._flush_left = _LONGEST_MESSAGE_LINES, _LONGEST_FLUSH_LINES

    def end(self) -> None:
        self._rest = _Rest.NONE

    def takes(self, line: str) -> bool:
        """True for a line of the message. After an empty line only indented ones still belong to it."""
        if self._rest is _Rest.NONE:
            return False
        self._lines_left -= 1
        is_indented = line.startswith((" ", "\t"))
        is_blank = not line.strip()
        goes_on = is_blank or is_indented or (self._rest is _Rest.ALL and not self._after_blank)
        self._after_blank |= is_blank
        self._flush_left -= not is_indented
        if goes_on and self._lines_left and self._flush_left and not _starts_anew(line):
            return True
        self.end()
        return False


_ANEW = re.compile(
    r".*\d+%\||\s*[\w.<>:~]+ \([^()\s]+\.(?:py|so|c|dylib)\b"
    r"|wandb: |[$%>] |\(base\)|\s*(?:\*\s*)?frame #\d|\s*#\d+\s|\s*@\s+0x|[-+=]{4,}"
    r"|(?:Current t|T)hread |Exception raised from|\s*\W*(?i:epoch|step|iter)\w*\W*\d|.*\bloss\b\W{1,4}(?:\d|nan)"
)


def _starts_anew(line: str) -> bool:
    """True for a line that certainly does not continue a message."""
    return bool(_ANEW.match(line) or _WARNING.search(line) or _level(line))


def _error(line: str, in_traceback: bool) -> tuple[str, _Rest] | None:
    if in_traceback and (match := _LAST_OF_TRACEBACK.match(line)):
        return line.strip(), _Rest.ALL
    match = _EXCEPTION.match(line)
    if _METRIC.match(line) and not (match and match["type"].endswith(_NUMBERED)):
        return None
    if match:
        return line.strip(), _Rest.ALL
    level = _level(line)
    if level == "lower" or _WARNING.search(line):
        return None
    if (match := _INSIDE.search(line)) and not _ADVICE.search(line[: match.start("type")]):
        return f"{match['type']}: {match['message'] or match['quoted']}", _Rest.ALL
    if (match := _FATAL.search(line)) and not _ADVICE.search(line[: match.start()]):
        return line.strip(), _Rest.ALL if "what():" in line else _Rest.INDENTED
    if level == "error" and not _NO_FAILURE.search(line):
        return line.strip(), _Rest.INDENTED
    return None


def _level(line: str) -> str:
    """The level of a log line: "error", "lower", or empty if no logger wrote it."""
    if native := _NATIVE_LEVEL.match(line):
        letter = next(letter for letter in native[0] if letter in "IWEF")
        # TensorFlow also logs E in healthy runs; torch does not.
        return "lower" if letter in "IW" else "error" if letter == "F" or native["torch"] else ""
    if match := _LEVEL.search(line, 0, 100):
        return "error" if match[1] in ("ERROR", "CRITICAL", "FATAL") else "lower"
    return ""


def _unwrapped(line: str) -> str:
    """The line without the prefixes of pytest ("E   ") and exception groups ("  | ")."""
    return re.sub(r"^(?:E {3,}|\s+[|+] ?)", "", line)
