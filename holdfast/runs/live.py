"""The live view of a run: drawn anew twice a second on a terminal, a line whenever something changed elsewhere.

It only reads the run's folder, so it can come and go, and many can look at once.
"""

import contextlib
import json
import os
import re
import select
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.core.artifacts import to_plain
from holdfast.core.env import wants_color
from holdfast.core.text import human_bytes, human_seconds, plural, processes_words
from holdfast.runs.status import AttemptStatus, Glance, read_glance
from holdfast.runs.view import clean

_TURN_SECONDS = 0.5
_CAUSE_LINES = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SPARKS = "▁▂▃▄▅▆▇█"
_MARKS = {"finished": "[ok]", "running": "[..]", "stopped": "[--]", "interrupted": "[--]"}
_NODE_MARKS = {"leads": "[ok]", "takes part": "[ok]", "left": "[--]"}
_ENDED = {"finished", "failed", "stopped"}


def render_glance(glance: Glance, width: int, height: int | None = None) -> list[str]:
    """Draw a run's state as lines of at most `width` characters."""
    status = glance.status
    lines = [glance.words, f"{_state(glance)}{_where(glance)}"]
    if status.steps and status.step <= status.steps:
        lines.append(_bar(status.step, status.steps, min(width, 72)))
    lines += [line for line in (_speed(glance), _loss_line(glance, width)) if line]
    lines += [*_wrapped(_metrics(glance), width), *_wrapped(_doing(glance), width)]
    lines += [
        f"{_NODE_MARKS.get(node.state, '[!]')} {node.name} {node.state}, step {node.step}" for node in status.nodes
    ]
    lines += [line for number, one in enumerate(status.attempts, 1) for line in _attempt_lines(number, one, width)]
    lines += _wrapped(glance.sentence, width)
    if height and len(lines) > height:
        lines = [*lines[: height // 2], "...", *lines[-(height - height // 2 - 1) :]]
    return [_cut(_CONTROL.sub("", line), width) for line in lines]


def spark_line(values: Sequence[float], width: int) -> str:
    """Draw numbers as a row of small bars, each the mean of its share."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if len(finite) < 2:
        return ""
    share = max(1, -(-len(finite) // width))
    means = [sum(finite[at : at + share]) / len(finite[at : at + share]) for at in range(0, len(finite), share)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_SPARKS[min(7, int((mean - low) / span * 8))] for mean in means)


def watch_run(run: Path, *, as_json: bool = False) -> None:
    """Show a run until it has ended or the viewer leaves."""
    if as_json or not sys.stdout.isatty() or not wants_color():
        _tell_changes(run, as_json)
        return
    with _keys() as is_quit, contextlib.suppress(KeyboardInterrupt):
        _draw_until(run, is_quit)


def _draw_until(run: Path, is_quit: "_Keys") -> None:
    drawn = 0
    while True:
        glance = read_glance(run)
        size = shutil.get_terminal_size()
        has_ended = glance.status.state in _ENDED and not glance.is_watched
        lines = render_glance(glance, size.columns - 1, size.lines - 2)
        lines.append("" if has_ended else _cut("q leaves the run alone", size.columns - 1))
        back = f"\x1b[{drawn}F" if drawn else ""
        sys.stdout.write(back + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        drawn = len(lines)
        if has_ended or is_quit(_TURN_SECONDS):
            return


def _tell_changes(run: Path, as_json: bool) -> None:
    """One line whenever something changed, for a file, a pipe or a terminal that cannot redraw."""
    told = ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            glance = read_glance(run)
            line = _json_line(glance) if as_json else _plain_line(glance)
            if line != told:
                print(line, flush=True)
                told = line
            if glance.status.state in _ENDED and not glance.is_watched:
                if not as_json:
                    for number, one in enumerate(glance.status.attempts, 1):
                        print("\n".join(_attempt_lines(number, one, 10_000)))
                    print(clean(glance.sentence, 2000), flush=True)
                return
            time.sleep(1.0)


def _json_line(glance: Glance) -> str:
    return json.dumps(to_plain(replace(glance.status, eta_seconds=None)), ensure_ascii=False)


def _plain_line(glance: Glance) -> str:
    status = glance.status
    parts = [_state(glance), status.phase, f"step {status.step}" + (f"/{status.steps}" if status.steps else "")]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4g}")
    parts.append(plural(len(status.attempts), "attempt"))
    return ", ".join(part for part in parts if part)


def _state(glance: Glance) -> str:
    status = glance.status
    return f"{status.state} for machines: {status.here}" if status.here else status.state


def _where(glance: Glance) -> str:
    status = glance.status
    phase = f", {status.phase}" if status.phase else ""
    step = f", step {status.step}" + (f" of {status.steps}" if status.steps else "") if status.step else ""
    clock = f", {human_seconds(glance.seconds)}" if glance.seconds else ""
    return phase + step + clock


def _bar(step: int, steps: int, width: int) -> str:
    share = step / steps
    room = max(10, width - 6)
    full = int(share * room)
    return "█" * full + "░" * (room - full) + f" {share:4.0%}"


def _speed(glance: Glance) -> str:
    parts = []
    if glance.steps_per_second:
        rate = glance.steps_per_second
        parts.append(f"{rate:.2f} steps/s" if rate >= 1 else f"{human_seconds(1 / rate)} a step")
    if glance.status.eta_seconds is not None:
        parts.append(f"{human_seconds(glance.status.eta_seconds)} left")
    if glance.resident_bytes:
        parts.append(f"memory {human_bytes(glance.resident_bytes)}")
    if many := processes_words(glance.status.processes):
        parts.append(many)
    return ", ".join(parts)


def _loss_line(glance: Glance, width: int) -> str:
    if glance.status.loss is None:
        return ""
    start = f"loss {glance.status.loss:.4g} "
    return start + spark_line(glance.losses, max(8, min(60, width - len(start))))


def _metrics(glance: Glance) -> str:
    flat = [(name, value) for name, value in _flat(glance.status.metrics) if name not in ("step", "steps")]
    return ", ".join(f"{name} {value:.4g}" for name, value in flat[:6])


def _flat(metrics: object, prefix: str = "") -> list[tuple[str, float]]:
    if not isinstance(metrics, dict):
        return []
    found: list[tuple[str, float]] = []
    for name, value in metrics.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
        else:
            found += _flat(value, f"{name} ")
    return found


def _doing(glance: Glance) -> str:
    return f"now: {glance.doing}" if glance.doing else ""


def _attempt_lines(number: int, one: AttemptStatus, width: int) -> list[str]:
    mark = _MARKS.get(one.outcome, "[x]")
    rung = f": {one.rung}" if one.rung else ""
    noticed = f", noticed after {human_seconds(one.noticed_after_seconds)}" if one.noticed_after_seconds else ""
    said = _wrapped(f"attempt {number}{rung}; {one.outcome} at step {one.step_reached}{noticed}", width - 5)
    said += _wrapped(clean(one.diagnosis), width - 5) if one.diagnosis else []
    return [f"{mark} {said[0]}", *(f"     {line}" for line in said[1:])]


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(20, width), break_on_hyphens=False)
    return lines if len(lines) <= _CAUSE_LINES else [*lines[: _CAUSE_LINES - 1], lines[_CAUSE_LINES - 1] + " …"]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(1, width - 1)] + "…"


class _Keys:
    """Waits for a key; true when it asks to leave."""

    def __call__(self, seconds: float) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(readable) and os.read(sys.stdin.fileno(), 16)[:1] in (b"q", b"Q", b"\x03", b"\x1b", b"")


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Read single keys from the terminal, if standard input is one."""
    if not sys.stdin or not sys.stdin.isatty():
        yield _NoKeys()
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class _NoKeys(_Keys):
    def __call__(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False
