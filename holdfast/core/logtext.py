"""Turns the text a failed process left into evidence: clean lines, its errors, its frames, how it ended.

Reads logs as people have them: cut off, with terminal codes and progress bars, wrapped in rank prefixes or boxes. It
recognises structure (an exception, a frame, a shell's word about a signal) and judges nothing.
"""

import re
from collections.abc import Iterable, Iterator

from holdfast.core.evidence import Evidence, Text
from holdfast.core.stacks import read_stacks

_TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")

# What launchers and loggers put before a line: "[rank1]: ", "(worker pid=4) ", "E   ", box sides, "0: ".
_PREFIX = re.compile(
    r"^(?:\s*[│|┃]\s?|\s*\[(?:rank)?\s*\d+\](?:\[[^\]]*\])?:?\s?|\s*\([\w ]*pid=\d+[^)]*\)\s?|E {2,}|\s*\d{1,3}: (?=\S))+"
)
_EXCEPTION = re.compile(
    r"^\s*(?:(?:raise|ERROR|CRITICAL|FATAL|error|\w+Error/\w+)[\s:-]+)?(?:Uncaught exception:?\s+)?"
    r"(?P<type>(?:[A-Za-z_][\w]*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Lost|Exceeded|OutOfMemory))"
    r"(?::\s*(?P<message>.*)|\s*)$"
)
_EXCEPTION_INSIDE = re.compile(
    r"(?:^|[\s(\[\"'])(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))[:(]\s*(?P<message>.+)$"
)
# Lines that end a process from native code, without any Python exception.
_FATAL = re.compile(
    r"Fatal Python error|terminate called|libc\+\+abi|terminating (?:due to|with) uncaught|failed assertion|Assertion .* failed"
    r"|Check failed|\bOMP: Error|\bfree\(\): |malloc\(\)|munmap_chunk|corrupted|\*\*\* |SIG[A-Z]{3,}\b|core dumped|segmentation fault"
    r"|Segmentation fault|Abort trap|Bus error|Illegal instruction|Killed|Out of memory|dyld\[|dyld: |Library not loaded"
    r"|undefined symbol|cannot open shared object",
)
_SIGNAL_WORDS = (
    (
        r"segmentation fault|\bSIGSEGV\b|signal 11\b|exit(?:ed)?(?: with)? code:? (?:-11|139)\b|EXC_BAD_ACCESS",
        "SIGSEGV",
    ),
    (
        r"Abort trap|\bSIGABRT\b|zsh: abort|Aborted(?: \(core dumped\))?$|signal 6\b|exitcode:? -6\b|code:? (?:-6|134)\b",
        "SIGABRT",
    ),
    (r"\bBus error\b|\bSIGBUS\b|signal 7\b|code:? (?:-7|135)\b|zsh: bus error", "SIGBUS"),
    (r"Illegal instruction|\bSIGILL\b|signal 4\b|code:? (?:-4|132)\b", "SIGILL"),
    (r"\bKilled: 9\b|^Killed$|zsh: killed|\bSIGKILL\b|signal 9\b|code:? (?:-9|137)\b", "SIGKILL"),
)
_SIGNALS = {
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
    2: "SIGINT",
}


def read_evidence(text: str, exit_status: str = "") -> Evidence:
    """Read the whole text of a log. `exit_status` is a code, a signal's name or number, "hang", or nothing."""
    lines = list(clean_lines(text.split("\n")))
    stacks = read_stacks(lines)
    return Evidence(
        log=Text("log", lines),
        errors=Text("error", _errors(lines)),
        frames=Text(
            "frame",
            (
                (frame.line, f"{frame.function} ({frame.module})" if frame.module else frame.function)
                for stack in stacks
                for frame in stack.frames
            ),
        ),
        exit=Text("exit", _exit_lines(lines, exit_status)),
        stacks=stacks,
    )


def clean_lines(raw_lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Number the lines; drop terminal codes and control characters; of a redrawn line keep its last state."""
    for number, raw in enumerate(raw_lines, start=1):
        line = _TERMINAL_CODES.sub("", raw.rstrip("\r\n"))
        line = line.rsplit("\r", 1)[-1] if "\r" in line else line
        yield number, _CONTROL.sub("", line).rstrip()


def exit_words(exit_status: str) -> str:
    """Say how a process ended in one form: "code 1", "signal SIGSEGV", "hang", or nothing when it is not known."""
    status = exit_status.strip()
    if name := re.search(r"SIG[A-Z]+", status.upper()):
        return f"signal {name[0]}"
    if re.fullmatch(r"-?\d+", status):
        code = int(status)
        signal = -code if code < 0 else code - 128
        return f"signal {_SIGNALS[signal]}" if signal in _SIGNALS else f"code {code}"
    return "hang" if status.lower() in ("hang", "hung", "timeout") else ""


def _exit_lines(lines: list[tuple[int, str]], exit_status: str) -> list[tuple[int, str]]:
    if told := exit_words(exit_status):
        return [(0, told)]
    for number, line in reversed(lines):
        for pattern, signal in _SIGNAL_WORDS:
            if re.search(pattern, line, re.IGNORECASE if signal == "SIGSEGV" else 0):
                return [(number, f"signal {signal}")]
    return []


def _errors(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    inside_message = False
    for number, raw in lines:
        line = _PREFIX.sub("", raw)
        if match := _EXCEPTION.match(line):
            inside_message = bool(match["message"])
            yield number, line.strip()
        elif _FATAL.search(line):
            inside_message = False
            yield number, line.strip()
        elif match := _EXCEPTION_INSIDE.search(line):
            inside_message = False
            yield number, f"{match['type']}: {match['message']}"
        elif (
            inside_message and line.strip() and not re.match(r"Traceback |  File |During handling|The above exc", line)
        ):
            yield number, line.rstrip()  # an exception's message may go on for many lines
        else:
            inside_message = False
