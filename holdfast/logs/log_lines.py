"""Cleans the lines of a log and separates them by writer.

Terminal codes are removed, a redrawn line keeps its last state, and the prefixes of launchers and loggers (a rank, a
pid, a time) are stripped, so that the readers of errors and stacks see what the program itself wrote.
"""

import json
import re
from collections.abc import Iterable, Iterator

Line = tuple[int, str]  # number in the file, counted from 1, and text

LONGEST_LINE = 1500  # longer lines are split: a pattern may scan a line once per character
_OVERLAP = 200  # of two pieces, so that no phrase is split

_TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\ufeff]")
_MOVING = re.compile(r"[\d\s.:,?█▏▎▍▌▋▊▉#━╸=>-]+")  # changes when a progress bar is redrawn
# Text after a progress bar without a line break: "100%|███| 8/8 [00:07<00:00, 1.1it/s]Traceback (most recent ..."
_AFTER_BAR = re.compile(
    r"(?<=[\]s%])(?=Traceback \(|Windows fatal|Fatal Python|WARNING:|ERROR:|[A-Z]\w+(?:Error|Exception|Interrupt)\b)"
)
# Terminal lines that a paste joined, with the spaces that filled them.
_PADDED = re.compile(r" {8,}(?=Traceback \(|File \"|WARNING:|ERROR:|(?:\w+\.)*\w+(?:Error|Exception): )")
_ORPHANED_CODES = re.compile(r"\[(?:\d{1,2}(?:;\d{1,2})*)?m")  # terminal codes that lost their first character

# The writer: "[rank1]: ", "[1,0]<stderr>:", "(RayTrainWorker pid=4, ip=10.0.0.1) ", "0: " of srun, "trainer-1  | ".
_SPEAKER = re.compile(
    r"(?:\[(?P<rank>(?:rank|default|worker|node)?[\s-]?\d+(?:,\d+)?)\](?:<std(?:err|out)>)?:\s?"
    r"|\((?P<actor>[^()]*\bpid=\d+[^()]*)\)\s?"
    r"|(?P<task>\d{1,4}):\s"
    r"|(?P<service>(?!(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|SUCCESS)\b)[A-Za-z][\w.-]*)\s+\|\s"
    r"|(?P<unit>[A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d \S+ [\w./-]+\[\d+\]):\s"
    r"|(?P<quote>>) )"
)
_STAMP = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+: WARNING/[\w-]+\] "  # celery, for output of a task
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]?(?: std(?:err|out) [FP])?[\s:]"
    r"|\[\d\d:\d\d:\d\d(?:\.\d+)?\] "
    r"|\[\s*\d+\.\d{6}\] "  # the kernel's seconds since boot
)


def clean_lines(raw_lines: Iterable[Line]) -> Iterator[Line]:
    """Remove terminal codes and control characters, keep the last state of a redrawn line, split very long lines.

    Of many empty lines in a row, two are kept.
    """
    empty_lines = 0
    for number, raw in raw_lines:
        empty_lines = 0 if raw else empty_lines + 1
        if empty_lines > 2:
            continue
        if raw.startswith('{"log":"'):
            raw = _docker_line(raw)
        line = _TERMINAL_CODES.sub("", raw) if "\x1b" in raw else raw
        if "[0m" in line or "[39m" in line:
            line = _ORPHANED_CODES.sub("", line)
        for state in _last_states(line):
            text = (state if state.isprintable() else _CONTROL.sub("", state)).rstrip()
            for part in _parts(text):
                yield number, part[:LONGEST_LINE]
                for start in range(LONGEST_LINE - _OVERLAP, len(part) - _OVERLAP, LONGEST_LINE - _OVERLAP):
                    yield number, part[start : start + LONGEST_LINE]


def by_speaker(lines: Iterable[Line]) -> list[list[Line]]:
    """Group lines by writer, without prefixes; ranks that write at the same time are separated."""
    groups: dict[str, list[Line]] = {}
    for number, line in lines:
        speaker, bare = _split_prefixes(line)
        groups.setdefault(speaker, []).append((number, bare))
    return list(groups.values())


def _last_states(line: str) -> list[str]:
    """The states of a line redrawn with carriage returns; of those that differ only in numbers, the last."""
    if "\r" not in line:
        return [line]
    kept: dict[str, str] = {}
    for state in line.split("\r"):
        if state.strip():
            shape = _MOVING.sub("", state[:200])[:16]
            kept.pop(shape, None)
            kept[shape] = state
    return list(kept.values()) or [""]


def _parts(line: str) -> list[str]:
    """The parts of a line that were joined without a line break."""
    parts = _PADDED.split(line) if len(line) > 200 and " " * 8 in line else [line]
    return [part for whole in parts for part in (_AFTER_BAR.split(whole) if "%|" in whole else (whole,))]


def _split_prefixes(line: str) -> tuple[str, str]:
    speaker = ""
    for _ in range(4):
        if match := _STAMP.match(line):
            line = line[match.end() :]
        elif match := _SPEAKER.match(line):
            speaker += match[match.lastgroup] if match.lastgroup else ""
            line = line[match.end() :]
        else:
            break
    return speaker, line


def _docker_line(raw: str) -> str:
    try:
        return str(json.loads(raw)["log"]).rstrip("\n").replace("\n", " ")
    except (ValueError, KeyError, TypeError, RecursionError):
        return raw
