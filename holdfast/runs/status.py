"""Says where a run stands, from its folder alone: nobody has to be running for that.

The fields of `Status` are what `holdfast status --json` prints.
"""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import RequestError
from holdfast.core.old_events import find_last_event, read_events, read_last_events
from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import EVENTS, METRICS, REQUEST, RESULT, RUNG, SAMPLES, SETTINGS, attempt_folders
from holdfast.runs.earlier_attempts import is_left_running, newest_step
from holdfast.runs.nodes import NodeStatus, read_leader, read_nodes
from holdfast.runs.run_path import require_run
from holdfast.supervisor.ends import read_ranks
from holdfast.supervisor.outcome import newest_beat, weights_words

_ALONE = (
    "it trains on, but its supervisor is gone: `holdfast resume {run}` ends it and goes on from its last checkpoint"
)
_NOBODY = "nobody looks after it: `holdfast resume {run}` goes on"
_LAST_EVENTS_BYTES = 8192
_TURNS = ("phase", "waiting", "attempt", "finished", "stopped", "failed")  # each ends what the one before began
_RATE_SAMPLES = 24  # about two minutes: the speed of now, not of the first epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """One attempt in a line."""

    rung: str  # what it changed; empty for the plan as asked
    outcome: str  # "running", "finished", "died", "hung", "stopped", "interrupted"
    diagnosis: str | None  # the cause in one sentence
    noticed_after_seconds: float | None
    step_reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a run stands."""

    state: str  # "preparing" | "proving" | "waiting" | "training" | "finished" | "failed" | "stopped"
    phase: str
    step: int
    steps: int
    loss: float | None
    metrics: Mapping[str, Any]
    eta_seconds: float | None
    attempts: tuple[AttemptStatus, ...]
    processes: int = 1  # that share each step
    nodes: tuple[NodeStatus, ...] = ()  # where several machines take part
    here: str = ""  # while it waits for machines: how many have come, and which


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A status with what only a live view shows."""

    status: Status
    words: str = ""  # what is run
    sentence: str = ""  # how it ended
    doing: str = ""  # what the process does now
    resident_bytes: int | None = None
    steps_per_second: float | None = None
    losses: tuple[float, ...] = ()
    is_watched: bool = False
    seconds: float = 0.0  # since the newest attempt began
    output_lines: tuple[str, ...] = field(default_factory=tuple)


def read_status(run: Path) -> Status:
    """Where a run stands now."""
    return read_glance(run).status


def read_glance(run: Path) -> Glance:
    """Where a run stands now, with what the live view adds."""
    request = read_request(run)
    result = read_artifact(run / RESULT)
    is_watched = read_leader(run) is not None
    is_left = not is_watched and is_left_running(run)
    folders = attempt_folders(run)
    attempts = tuple(_attempt_status(folder, is_watched or is_left) for folder in folders)
    newest = folders[-1] if folders else None
    phase, step, steps = newest_beat(newest) if newest else ("", 0, 0)
    step = step or newest_step(reversed(folders))  # while it loads, the run stands where it stood
    samples: list[dict[str, Any]] = read_last_events(newest / SAMPLES)[-_RATE_SAMPLES:] if newest else []
    losses, metrics = _learned(newest) if newest else ((), {})
    here = _here(run) if is_watched else ""
    state = "waiting" if here else _state(result, is_watched or is_left, newest is not None, run)
    rate = _rate(samples)
    is_going = state == "training"
    last = samples[-1] if samples else {}
    status = Status(
        state=state,
        phase=phase if is_going or state == "stopped" else "",
        step=step,
        steps=steps,
        loss=losses[-1] if losses else None,
        metrics=read_artifact(run / METRICS) or metrics,
        eta_seconds=round((steps - step) / rate, 1) if is_going and rate and steps > step else None,
        attempts=attempts,
        processes=processes_of(newest) if newest else int(request.get("processes") or 1),
        nodes=read_nodes(run),
        here=here,
    )
    return Glance(
        status=status,
        words=_words(request),
        sentence=_sentence(run, result, is_watched, is_left),
        doing=str(last.get("words", "")) if is_going else "",
        resident_bytes=last.get("resident_bytes") if is_going else None,
        steps_per_second=rate if is_going else None,
        losses=losses,
        is_watched=is_watched,
        seconds=_age_seconds(newest / RUNG) if newest and is_going else 0.0,
    )


def processes_of(attempt: Path) -> int:
    """How many processes share each step of an attempt: as its settings say, or as many ranks as a command has."""
    asked = read_artifact(attempt / SETTINGS).get("processes")
    return asked if isinstance(asked, int) else len(read_ranks(attempt)) or 1


def read_request(run: Path) -> dict[str, Any]:
    """What was asked; refuse a folder that holds no run."""
    require_run(run)
    request = read_artifact(run / REQUEST)
    if not request:
        raise RequestError(
            f"{run / REQUEST} cannot be read",
            seen="it is not the JSON object that a run begins with",
            try_next=(f"holdfast report {run}, which shows what is left of the run",),
        )
    return request


def _state(result: Mapping[str, Any], is_watched: bool, has_attempts: bool, run: Path) -> str:
    if result and not is_watched:
        return str(result.get("state", "failed"))
    if not is_watched:
        return "stopped"  # its supervisor is gone; `resume` takes it up again
    if has_attempts:
        return "training"
    phases = [event.get("phase") for event in read_events(run / EVENTS) if event["event"] == "phase"]
    return "proving" if phases and phases[-1] == "prove" else "preparing"


def _sentence(run: Path, result: Mapping[str, Any], is_watched: bool, is_left: bool) -> str:
    """How it ended, or how it was left."""
    if is_left:
        return _ALONE.format(run=run)
    return str(result.get("sentence", "")) if result or is_watched else _NOBODY.format(run=run)


def _here(run: Path) -> str:
    """How many machines have come, where the last thing that the one that leads began was to wait for more."""
    told = read_last_events(run / EVENTS, most_bytes=_LAST_EVENTS_BYTES)
    last = next((event for event in reversed(told) if event["event"] in _TURNS), {})
    return str(last.get("here") or "") if last.get("event") == "waiting" else ""


def _attempt_status(attempt: Path, is_watched: bool) -> AttemptStatus:
    outcome = read_record(attempt, Outcome)
    if outcome:
        return AttemptStatus(
            rung=outcome.rung,
            outcome=outcome.outcome,
            diagnosis=outcome.sentence or None,
            noticed_after_seconds=outcome.noticed_after_seconds,
            step_reached=outcome.step_reached,
        )
    _, step, _ = newest_beat(attempt)
    return AttemptStatus(
        rung=str(read_artifact(attempt / RUNG).get("rung", "")),
        outcome="running" if is_watched else "interrupted",
        diagnosis=weights_words(attempt) or None,
        noticed_after_seconds=None,
        step_reached=step,
    )


def _learned(attempt: Path) -> tuple[tuple[float, ...], dict[str, Any]]:
    """The losses and the newest metrics that the child told of."""
    told = read_last_events(attempt / EVENTS)
    losses = [
        float(loss)
        for event in told
        if event["event"] in ("step", "log") and (loss := _number(event.get("loss"))) is not None
    ]
    evaluated = find_last_event(attempt / EVENTS, "evaluated") or {}
    metrics = evaluated.get("metrics")
    return tuple(losses), metrics if isinstance(metrics, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _rate(samples: list[dict[str, Any]]) -> float | None:
    """Steps a second over the last samples of one attempt."""
    stepping = [sample for sample in samples if sample.get("step")]
    if len(stepping) < 2:
        return None
    first, last = stepping[0], stepping[-1]
    steps, seconds = last["step"] - first["step"], last["time"] - first["time"]
    return float(steps / seconds) if steps > 0 and seconds > 0 else None


def _words(request: Mapping[str, Any]) -> str:
    """What is run, as a person would call it."""
    if "command" in request:
        return shlex.join(map(str, request["command"]))
    return f"train {request.get('data', '')}".strip()


def _age_seconds(path: Path) -> float:
    return max(0.0, time.time() - path.stat().st_mtime) if path.exists() else 0.0
