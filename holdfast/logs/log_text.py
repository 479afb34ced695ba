"""Turns the output of a failed process into evidence: clean lines, errors, frames, and how it ended.

It reads logs as people have them: cut off, with terminal codes and progress bars, with rank prefixes or boxes. It
recognizes structure (an exception, a frame, a shell's message about a signal) and does not judge.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from holdfast.core.evidence import Evidence, Stack, Text
from holdfast.core.observations import ExitStatus
from holdfast.logs.banners import read_progress, read_versions
from holdfast.logs.crash_reports import ips_facts, read_ips, read_samples, with_load_addresses
from holdfast.logs.error_lines import find_errors
from holdfast.logs.exceptions import read_exceptions
from holdfast.logs.exits import find_exits, parse_exit_status
from holdfast.logs.log_lines import Line, by_speaker, clean_lines
from holdfast.logs.process_tables import read_hotspots, read_processes
from holdfast.logs.stack_reports import read_stacks


def read_evidence(text: str, status: ExitStatus | str | None = None) -> Evidence:
    """Read the whole text of a log. `status` is how the process ended: a value, or text
    such as "1", "SIGKILL" or "hang".
    """
    return read_lines(enumerate(text.split("\n"), start=1), status)


def read_lines(raw_lines: Iterable[Line], status: ExitStatus | str | None = None) -> Evidence:
    """Read the numbered lines of a log; some may have been left out."""
    raw = list(raw_lines)
    lines = list(clean_lines(raw))
    groups = by_speaker(lines)
    report = Text("log", raw)
    ips_exits, ips_words = ips_facts(report)
    stacks = sorted(_stacks(report, groups, lines), key=lambda stack: min(frame.line for frame in stack.frames))
    errors = sorted(
        [*ips_words, *(error for group in groups for error in find_errors(group))], key=lambda line: line[0]
    )
    told = [replace(found, line=number) for number, text in ips_exits if (found := parse_exit_status(text))]
    told += sorted((found for group in groups for found in find_exits(group)), key=lambda one: (one.line, one.signal))
    return Evidence(
        log=Text("log", lines),
        errors=Text("error", errors),
        frames=Text("frame", _frame_lines(stacks)),
        exits=tuple(_exits(parse_exit_status(status) if isinstance(status, str) else status, told)),
        versions=Text("version", read_versions(lines)),
        stacks=tuple(stacks),
        exceptions=read_exceptions(errors, stacks, (line for group in groups for line in group)),
        processes=read_processes(lines),
        hotspots=read_hotspots(lines),
        progress=read_progress(sorted(line for group in groups for line in group)),
    )


def _stacks(report: Text, groups: list[list[Line]], lines: list[Line]) -> Iterator[Stack]:
    yield from read_ips(report)
    in_text = [stack for group in groups for stack in read_stacks(group)]
    yield from with_load_addresses([*in_text, *read_samples(lines)], lines)


def _frame_lines(stacks: Iterable[Stack]) -> Iterator[Line]:
    """Each frame once as "function (module)"; the leaves of a sampled tree share their outer frames."""
    seen: set[tuple[int, str]] = set()
    for frame in (frame for stack in stacks for frame in stack.frames):
        if (frame.line, frame.function) not in seen:
            seen.add((frame.line, frame.function))
            yield frame.line, f"{frame.function} ({frame.module})" if frame.module else frame.function


def _exits(known: ExitStatus | None, told: list[ExitStatus]) -> list[ExitStatus]:
    """How the run ended: what the caller knows, then what the log says of a child that a signal ended."""
    if known and (known.signal or known.is_hang or known.code == 0):
        return [known]
    signals = {one.signal: one for one in reversed(told) if one.signal}
    if len(signals) > 1:
        signals.pop("SIGTERM", None)  # a launcher ends the other ranks after one has died
    exits = sorted(signals.values(), key=lambda one: (one.line, one.signal))
    return [known, *exits] if known else exits
