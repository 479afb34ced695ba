"""Shows a run on a terminal: lines that stay, and below them a part that is redrawn.

    screen = Screen()
    screen.line(Line("3 epochs, batch 16", "ok", "plan"))    # [ok] plan      3 epochs, batch 16
    screen.move(["step 44/93", "████░░░░  47%"])             # redrawn at the bottom
    screen.close()

Where the output is not a terminal, the redrawn part is a plain line every 15 seconds. `RunView` shows the events of a
run as they happen, for `train` and `run`; `run_lines` draws a whole state, for `status` and `watch`. All words come
from `runs/wording.py`.
"""

import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec

from holdfast.cli.output import put, put_bytes
from holdfast.core import events as ev
from holdfast.core.env import wants_color
from holdfast.core.event_log import EventTail, encode
from holdfast.core.records import read_request
from holdfast.core.runfolder import EVENTS, OUTPUT, attempt_folder
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.event_wording import event_lines, full_disk_text
from holdfast.runs.observation_wording import activity_text
from holdfast.runs.state import OF_TRAINING, Records, RunState, apply, new_events
from holdfast.runs.wording import (
    Line,
    attempt_lines,
    cause_text,
    clean,
    evaluation_text,
    headline,
    machines_text,
    progress_text,
    run_title,
    scores_text,
    state_text,
)

_MOVES_SECONDS = 0.2
_PLAIN_SECONDS = 15.0
_SHOWN_AFTER_SECONDS = 0.5  # faster work is not shown
_SPIN = "|/-\\"
_SPARKS = "▁▂▃▄▅▆▇█"
_CAUSE_LINES = 5
_WIDEST = 110
_CHUNK_BYTES = 1 << 16


class Screen:
    """A terminal or a file, with lines that stay and lines that are redrawn."""

    def __init__(self, *, quiet: bool = False, prefix: str = "", stream: IO[str] | None = None):
        self._quiet, self._prefix, self._stream = quiet, prefix, stream
        self.is_live = (stream or sys.stdout).isatty() and wants_color() and not quiet
        self._drawn, self._drawn_at, self._plain_at = 0, 0.0, time.monotonic()
        self._is_mid_line = False  # after output of another program
        self._what, self._what_at = "", 0.0
        self.lock = threading.RLock()

    def line(self, line: Line) -> None:
        """Print a line that stays."""
        if self._quiet:
            return
        with self.lock:
            self.erase()
            if self._prefix:
                name = f"{line.name}: " if line.name else ""
                text = f"{self._prefix}{name}{clean(line.text, 2000)}\n"
                self._write(("\n" if self._is_mid_line else "") + text)
            else:
                self._write("".join(f"{one}\n" for one in wrapped(line, width() - 1)))
            self._is_mid_line = False

    def through(self, output: bytes) -> None:
        """Pass on output of another program unchanged."""
        with self.lock:
            self.erase()
            put_bytes(output)
            self._is_mid_line = not output.endswith(b"\n")

    def move(self, lines: Sequence[str]) -> None:
        """Show what is happening; the next call redraws it."""
        if self._quiet or self._is_mid_line or not lines:
            return
        with self.lock:
            now = time.monotonic()
            if not self.is_live:
                if not self._prefix and now - self._plain_at >= _PLAIN_SECONDS:
                    self._plain_at = now
                    self._write(f"{lines[0]}\n")
            elif now - self._drawn_at >= _MOVES_SECONDS:
                self._drawn_at = now
                room = width() - 1
                drawn = "".join(f"\x1b[2K{cut(one, room)}\n" for one in lines)
                self._write((f"\x1b[{self._drawn}F" if self._drawn else "") + drawn + "\x1b[J")
                self._drawn = len(lines)

    def erase(self) -> None:
        """Remove the redrawn part."""
        with self.lock:
            if self._drawn:
                self._write(f"\x1b[{self._drawn}F\x1b[J")
                self._drawn = 0

    def working(self, what: str, done: int = 0, total: int | None = None, unit: Literal["", "bytes"] = "") -> None:
        """Show the progress of something that takes a while."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._what_at = what, now
        if now - self._what_at >= _SHOWN_AFTER_SECONDS:
            self.move([working_text(ev.Working(what=what, done=done, total=total, unit=unit), now - self._what_at)])

    def _write(self, text: str) -> None:
        if self._stream:
            self._stream.write(text)
            self._stream.flush()
        else:
            put(text)


class RunView:
    """Shows the events of a run as they happen. Called with each event; may be called from one thread only."""

    def __init__(self, screen: Screen, *, verbose: bool = False, shows_output: bool = False):
        self._screen, self._verbose, self._shows_output = screen, verbose, shows_output
        self.state = RunState(folder=Path())
        self._working_at = self._phase_at = self._output_at = time.monotonic()
        self._phase = ""
        self._evaluation = ""  # the newest one; with many epochs they would fill the screen
        self._full_since: int | None = None
        self._tail: EventTail | None = None  # of the attempt's events
        self._output: int | None = None  # file descriptor of the attempt's output.log
        self._ended = threading.Event()
        # Clocks advance even without events; a daemon thread, so that it never keeps the command from ending.
        threading.Thread(target=self._tick, name="screen", daemon=True).start()

    def __call__(self, event: ev.Event) -> None:
        """Show one event."""
        with self._screen.lock:
            if isinstance(event, ev.RunOpened):
                run = Path(event.folder)
                self.state, self._tail = RunState(folder=run, records=Records(request=read_request(run))), None
            self.pump()
            if not isinstance(event, OF_TRAINING):  # those are read from the attempt's own file
                self._take(event)
            if isinstance(event, ev.AttemptStarted):
                self._open_attempt()
            self._draw()

    def _take(self, event: ev.Event) -> None:
        self.state = apply(self.state, event)
        self._see_time(event)
        for line in self._lines(event):
            if self._verbose or not line.is_detail:
                self._screen.line(line)

    def pump(self) -> None:
        """Read what the attempt has written and printed since the last call."""
        for event in new_events(self._tail) if self._tail else ():
            self._take(event)
        while self._output is not None and (chunk := os.read(self._output, _CHUNK_BYTES)):
            self._output_at = time.monotonic()
            if self._shows_output:
                self._screen.through(chunk)

    def close(self) -> None:
        """Take the moving part away."""
        self._ended.set()
        with self._screen.lock:
            self.pump()
            self._screen.erase()

    def _lines(self, event: ev.Event) -> Iterable[Line]:
        attempt = self.state.attempt
        if isinstance(event, ev.CheckpointFailed | ev.DiskFull) and attempt and attempt.is_disk_full:
            saved = max(self.state.saved_step or 0, attempt.first_step or 0)
            if saved != self._full_since:  # reported once, until a checkpoint is saved again
                self._full_since = saved
                return [Line(full_disk_text(saved), "!")]
            return []
        if isinstance(event, ev.Evaluated) and event.metrics and attempt and attempt.epoch_steps:
            epoch = f"epoch {event.step / attempt.epoch_steps:.3g}, step {event.step:,}"
            self._evaluation = f"{epoch}: validation {evaluation_text(event.metrics)}"
            return [Line(self._evaluation, "ok", "training", is_detail=self._screen.is_live)]
        return event_lines(event)

    def _see_time(self, event: ev.Event) -> None:
        phase = self.state.phase or self.state.stage
        if phase != self._phase:
            self._phase, self._phase_at = phase, time.monotonic()
        if isinstance(event, ev.Working) and not event.done:
            self._working_at = time.monotonic()

    def _open_attempt(self) -> None:
        attempt = self.state.attempt
        if self._output is not None:
            os.close(self._output)
            self._output = None
        # With several machines, the leader's folder has the events of the training; each machine has its own output.
        self._tail = EventTail(attempt_folder(self.state.folder, attempt.number) / EVENTS) if attempt else None
        if self._shows_output and attempt:
            self._output = os.open(attempt.folder / OUTPUT, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _draw(self) -> None:
        now = time.monotonic()
        is_printing = self._shows_output and now - self._output_at < 1.0  # the command's own output goes first
        is_quick = not self.state.attempts and now - self._phase_at < _SHOWN_AFTER_SECONDS
        if is_quick or is_printing:
            return
        self._screen.move(self._moving(now))

    def _moving(self, now: float) -> list[str]:
        spin = _SPIN[int(now * 4) % 4] * 2 if self._screen.is_live else ".."
        state = self.state
        if state.working and not state.attempts:
            return [f"[{spin}] {working_text(state.working, now - self._working_at)}"]
        numbers = progress_text(state, speed=True)
        what = state_text(state)
        clock = "" if state.phase == "step" else f", {human_seconds(now - self._phase_at)}"
        lines = [f"[{spin}] {what}{clock}" + (f": {numbers}" if numbers else "")]
        if self._screen.is_live and state.steps and state.step <= state.steps:
            lines.append("     " + bar(state.step, state.steps, min(66, width() - 12)))
        if self._evaluation and self._screen.is_live and not self._verbose:
            lines.append(f"     {self._evaluation}")
        attempt = state.attempt
        if attempt and attempt.quiet and attempt.activity:
            lines.append("     " + clean(activity_text(attempt.activity)))
        if self._verbose and (curve := spark_line(state.curves.smoothed, max(8, min(40, width() - 12)))):
            saved = f"saved at step {state.saved_step:,}" if state.saved_step is not None else "nothing saved yet"
            lines.append(f"     {curve} loss, {saved}")
        return lines

    def _tick(self) -> None:
        while not self._ended.wait(_MOVES_SECONDS):
            with self._screen.lock:
                if not self._ended.is_set():
                    self._draw()


class EventLines:
    """Prints each event as one line of JSON, for programs."""

    def __call__(self, event: ev.Event) -> None:
        """Print one event; those that come many times a second are left out."""
        if not isinstance(event, ev.Progressed | ev.Working | ev.Ticked):
            put(encode(event).decode() + "\n")

    def close(self) -> None:
        """Nothing moves."""


def run_lines(state: RunState, columns: int, rows: int | None = None, *, title: str = "") -> list[str]:
    """A whole state as lines of at most `columns` characters."""
    title = title or run_title(state)
    lines = [title, headline(state, with_cause=False)]
    if not state.has_ended:
        lines = [title, state_text(state)]
        lines += _folded(progress_text(state, speed=True), columns)
    if state.steps and state.step <= state.steps and state.state != "finished":
        lines.append(bar(state.step, state.steps, min(columns, 72)))
    if curve := spark_line(state.curves.smoothed, max(8, min(60, columns - 20))):
        lines.append(f"loss {state.loss:.4g} {curve}")
    for name, metrics in state.scores.items():
        lines += _folded(f"{name} {scores_text(metrics)}", columns)
    if state.attempt and state.attempt.activity and (state.attempt.quiet or waiting_for(state)):
        lines += _folded(f"now: {clean(activity_text(state.attempt.activity))}", columns)
    marks = {"leads": "[ok]", "takes part": "[ok]", "left": "[--]"}
    lines += [f"{marks.get(node.state, '[!]')} {node.name} {node.state}, step {node.step}" for node in state.nodes]
    for before, attempt in zip((None, *state.attempts), state.attempts, strict=False):
        lines += [text for line in attempt_lines(attempt, before) for text in _short(wrapped(line, columns))]
    if state.is_orphaned or state.waiting:
        lines += _folded(headline(state), columns)
    folded = [text for line in lines for text in (_folded(line, columns) if len(line) > columns else [line])]
    if rows and len(folded) > rows:
        folded = [*folded[: rows // 2], "...", *folded[-(rows - rows // 2 - 1) :]]
    return folded


def status_fields(state: RunState) -> dict[str, object]:
    """What `status --json` and `watch --json` print. Fields may be added but not renamed: programs read them."""
    attempts = [
        {
            "fallback": attempt.fallback,
            "outcome": attempt.outcome,
            "diagnosis": cause_text(attempt) or None,
            "noticed_after_seconds": attempt.noticed_after_seconds,
            "step_reached": attempt.step,
            "slug": attempt.slug,
        }
        for attempt in state.attempts
    ]
    return {
        "state": state.state,
        "phase": state.phase,
        "step": state.step,
        "steps": state.steps,
        "loss": state.loss,
        "metrics": state.scores,
        "eta_seconds": round(state.seconds_left, 1) if state.seconds_left is not None else None,
        "attempts": attempts,
        "processes": state.processes,
        "nodes": state.nodes,
        "waiting_for": waiting_for(state),
        "here": machines_text(state.waiting) if state.waiting else "",
        "sentence": headline(state),
    }


def result_fields(state: RunState) -> dict[str, object]:
    """What `train --json` and `run --json` print at the end."""
    result = msgspec.to_builtins(state.records.result)
    return {"run": state.folder, **(result or {}), "sentence": headline(state)}


def waiting_for(state: RunState) -> dict[str, object] | None:
    """What outside of the training a run waits for now; None when it does not."""
    activity = state.attempt.activity if state.is_training and state.attempt else None
    if activity is None or activity.outside is None:
        return None
    return {
        "kind": activity.outside.kind,
        "pid": activity.outside.pid,
        "name": activity.outside.name,
        "seconds": activity.waited_seconds,
        "limit_seconds": activity.limit_seconds,
    }


def wrapped(line: Line, columns: int) -> list[str]:
    """A line as text, wrapped to the width, with its mark and name in front."""
    room = max(38, min(columns + 1, _WIDEST))
    mark = f"[{line.mark}]" if line.mark else ""
    head = f"{mark:<4} {line.name:<10} " if line.name else f"{mark:<4} "
    indent = " " * (len(head) if room >= 60 else 5)
    text = clean(line.text, 2000)
    return textwrap.wrap(
        text, room - 1, initial_indent=head, subsequent_indent=indent, break_long_words=True, break_on_hyphens=False
    )


def working_text(event: ev.Working, seconds: float) -> str:
    """The progress of something: "reading texts.csv: 12,000 of 30,000, 3.2 s, about 5.0 s left"."""
    text, done, total = event.what, event.done, event.total
    if event.unit == "bytes":
        text += f": {human_bytes(done)}" + (f" of {human_bytes(total)}" if total else "")
    elif done or total:
        text += f": {done:,}" + (f" of {total:,}" if total else "")
    text += f", {human_seconds(seconds)}"
    return text + (
        f", about {human_seconds(seconds * (total - done) / done)} left" if total and 0 < done < total else ""
    )


def bar(done: int, total: int, columns: int) -> str:
    """A progress bar with its percentage."""
    room = max(10, columns - 6)
    full = int(room * done / total)
    return "█" * full + "░" * (room - full) + f" {done / total:4.0%}"


def spark_line(values: Iterable[float], columns: int) -> str:
    """Numbers as a row of small bars, each the mean of a range."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if len(finite) < 2:
        return ""
    share = max(1, -(-len(finite) // columns))
    means = [sum(finite[at : at + share]) / len(finite[at : at + share]) for at in range(0, len(finite), share)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_SPARKS[min(7, int((mean - low) / span * 8))] for mean in means)


def cut(text: str, columns: int) -> str:
    """A line that fits."""
    return text if len(text) <= columns else text[: max(1, columns - 1)] + "…"


def width() -> int:
    """How many columns the terminal has."""
    return shutil.get_terminal_size((100, 24)).columns


def _folded(text: str, columns: int) -> list[str]:
    return _short(textwrap.wrap(text, max(20, columns), break_on_hyphens=False))


def _short(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _CAUSE_LINES else [*lines[: _CAUSE_LINES - 1], lines[_CAUSE_LINES - 1] + " …"]
