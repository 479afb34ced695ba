"""How one attempt went: what the ladder needs to know of it, and what its outcome says besides the cause."""

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import HoldfastError, read_error
from holdfast.core.event_log import find_last, read_events
from holdfast.core.events import (
    ChangeApplied,
    ExitHandlersEnded,
    PartUsed,
    ProgramEnded,
    TrainingStopped,
    WeightsChecked,
)
from holdfast.core.evidence import Cause, Evidence, Seen
from holdfast.core.heartbeat import read_beat
from holdfast.core.observations import ExitStatus, NonFiniteNumbers, OwnCode, ProgramExit
from holdfast.core.plan import Fallback
from holdfast.core.records import ChildInfo, Outcome, read_record
from holdfast.core.runfolder import BEAT, BEATS, EVENTS, REFUSED
from holdfast.hazards import find_hazard
from holdfast.logs.error_lines import first_lines
from holdfast.supervisor.child_exits import signal_name
from holdfast.supervisor.ladder import Tried

_EXTERNAL_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL}
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
EXTERNAL = {"process-killed", "process-stopped", "machine-sleep"}  # these causes are no fault of the plan
_TRAINING = ("first step", "step", "evaluate", "save", "end")  # the phases of a script that has set everything up
# Variables that mean the same as a setting, and have no effect where it has none.
_ECHOES = {"TORCH_COMPILE_DISABLE": "compile", "TORCHDYNAMO_DISABLE": "compile"}
NAN, EXIT = "nan-loss", "exit-crash"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


def tried_of(outcome: Outcome) -> Tried:
    """What the ladder needs to know of an attempt."""
    ending: Literal["signal", "code", "hang"] = "code"
    if outcome.outcome == "hung":
        ending = "hang"
    elif outcome.outcome == "interrupted" or (outcome.exit_code or 0) < 0:
        ending = "signal"
    return Tried(
        changes=outcome.changes,
        fallback=Fallback(outcome.fallback, outcome.fallback_change) if outcome.fallback_change else None,
        ending=ending,
        exit_code=outcome.exit_code,
        slug=outcome.diagnosis or "unknown",
        error=outcome.error,
        place=outcome.place,
        step_reached=outcome.step_reached,
        phase=outcome.phase,
        is_outside=outcome.is_external,
        has_waited_outside=_has_waited_outside(outcome.cause),
        seconds=_lived_seconds(outcome),
        ineffective=frozenset(outcome.ineffective),
    )


def _has_waited_outside(cause: Cause | None) -> bool:
    return cause is not None and cause.given_up is not None and cause.given_up.reason == "outside_too_long"


def _lived_seconds(outcome: Outcome) -> float:
    """Until its last sign of progress; an attempt that was cut off with its supervisor was not killed at its start."""
    if outcome.outcome == "interrupted" or not outcome.seconds:
        return float("inf")
    return max(0.0, outcome.seconds - (outcome.noticed_after_seconds or 0.0))


def newest_beat(attempt: Path) -> tuple[str, int, int]:
    """Phase, step and steps of the most advanced page of an attempt."""
    pages = [attempt / BEAT, *(attempt / BEATS).glob("*")]
    beats = [beat for page in pages if (beat := read_beat(page))]
    best = max(beats, key=lambda beat: (beat.step, beat.monotonic_ns), default=None)
    return (best.phase, best.step, best.steps) if best else ("", 0, 0)


def is_at_end(attempt: Path, pid: int) -> bool:
    """Whether a program reached its last line without an error, regardless of its process's exit."""
    ended = find_last(attempt / EVENTS, ProgramEnded)
    return ended is not None and ended.pid == pid and ended.is_clean


def bad_weights(attempt: Path) -> Cause | None:
    """That the weights are not finite any more, and since when; None when nothing was seen of it."""
    checked = find_last(attempt / EVENTS, WeightsChecked)
    if checked is None or not checked.is_nan:
        return None
    return _remark(NAN, NonFiniteNumbers(step=checked.step, last_finite_step=checked.last_finite_step))


def exit_crash(attempt: Path, pid: int, exit_code: int) -> Cause | None:
    """That a program crashed once its own code had run to the end; None when it did not, or ended otherwise."""
    if -exit_code not in _CRASHES or not is_at_end(attempt, pid):
        return None
    if find_last(attempt / EVENTS, TrainingStopped):  # it was asked to, half-way
        return None
    is_handled = find_last(attempt / EVENTS, ExitHandlersEnded) is not None
    crash = ProgramExit(crashed_after="process" if is_handled else "exit_handler")
    return _remark(EXIT, crash, ExitStatus(signal=signal_name(-exit_code)))


def _remark(slug: str, proof: Seen, status: ExitStatus | None = None) -> Cause:
    hazard = find_hazard(slug)
    return Cause(slug=slug, confidence="proven", title=hazard.title if hazard else slug, proof=proof, exit=status)


def last_error(evidence: Evidence) -> tuple[str, str]:
    """The last exception in the output and where it was raised; of a hang or a crash only the place, where known."""
    if code := next(evidence.observed(OwnCode), None):
        return "", f"{code.place.file}:{code.place.line}"
    errors = first_lines(evidence)
    if not errors:
        return "", ""
    before = "\n".join(passage.text for passage in evidence.log if passage.line <= errors[-1].line)
    frames = list(_FRAME.finditer(before))
    return errors[-1].text, f"{frames[-1]['file']}:{frames[-1]['line']}" if frames else ""


def engine_error(attempt: Path) -> HoldfastError | None:
    """Why our own engine refused to train; None where it did not."""
    record = read_artifact(attempt / REFUSED)
    return read_error(record) if record else None


def ineffective_changes(attempt: Path, changes: Mapping[str, object], outcome: Outcome) -> tuple[str, ...]:
    """The changed settings that have no effect in this script; empty before it trains, when that is unknown."""
    has_begun = outcome.step_reached or outcome.phase in _TRAINING
    if not has_begun or is_of_engine(attempt):
        return ()  # the engine's own ladder knows its settings
    events = list(read_events(attempt / EVENTS))
    applied = {event.change for event in events if isinstance(event, ChangeApplied)}
    uses = {event.what for event in events if isinstance(event, PartUsed)}
    settings = {name for name in changes if not name.isupper()} | _not_used(uses)
    settings -= applied | {f"{name}_factor" for name in applied}
    return tuple(sorted(settings | {name for name, setting in _ECHOES.items() if setting in settings}))


def is_of_engine(attempt: Path) -> bool:
    """Whether our own engine trains in an attempt, alone or in several processes."""
    child = read_record(attempt, ChildInfo)
    return (attempt / BEAT).exists() or (child is not None and "holdfast.engine" in child.command)


def _not_used(uses: set[str]) -> set[str]:
    """The settings that have no effect in a script that uses only these parts."""
    without: set[str] = set()
    if "loader" not in uses:
        without |= {"loader_workers", "prefetch_batches"}
    if "compile" not in uses:
        without.add("compile")
    if not any(what.endswith("trainer") or what == "lightning" for what in uses):
        without |= {"micro_batch_factor", "eval_micro_batch_factor", "precision", "gradient_checkpointing"}
    if "mlx-lm" in uses:
        without.discard("gradient_checkpointing")
    return without


def was_killed_externally(exit_code: int | None, *, is_oom: bool, can_tell: bool = True) -> bool:
    """True for a signal that programs do not send themselves, unless it was or may have been the kernel's for memory.

    `can_tell`: whether a kill for memory would have been seen.
    """
    number = -exit_code if exit_code and exit_code < 0 else (exit_code or 0) - 128
    if number not in _EXTERNAL_SIGNALS or is_oom:
        return False
    return number != signal.SIGKILL or can_tell
