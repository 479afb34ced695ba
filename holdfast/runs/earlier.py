"""Reads what earlier supervisors of a run left, and ends what they left running.

An attempt without an outcome was cut off with its supervisor: by a kill, a crash or a restart of the machine. It says
nothing against its plan. A run that was stopped or had failed is a new question, with the plan it last had.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.old_events import read_last_events
from holdfast.core.plan import Reason, Rung
from holdfast.core.records import Outcome, read_record, to_record
from holdfast.core.runfolder import DECISION, EVENTS, OUTCOME, RUNG, SAMPLES, attempt_folder, attempt_folders
from holdfast.planning.ladder import Changes
from holdfast.supervisor.ending import end_tree
from holdfast.supervisor.members import find_member, read_root
from holdfast.supervisor.outcome import newest_beat


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Where a run stands before it is supervised again."""

    next_number: int = 1
    counted: tuple[Outcome, ...] = ()  # attempts of the same question, which the ladder counts
    rung: Rung | None = None  # what was decided and not yet tried
    changes: Changes = field(default_factory=dict)
    reason: Reason = Reason(kind="as_requested")
    seconds: float = 0.0  # that all earlier attempts ran, without the time between a stop and its resume


def read_earlier(run: Path, on_leftover: Callable[[str], None]) -> Earlier:
    """Look at every earlier attempt; end the processes of the one that was cut off."""
    folders = attempt_folders(run)
    if not folders:
        return Earlier()
    ended = [(folder, outcome) for folder in folders[:-1] if (outcome := read_record(folder, Outcome))]
    last = read_record(folders[-1], Outcome) or _close_cut_off(folders[-1], on_leftover)
    next_number = int(folders[-1].name) + 1
    seconds = last.seconds + sum(outcome.seconds for _, outcome in ended)
    if last.outcome in ("stopped", "finished"):
        reason = Reason(kind="after_stop" if last.outcome == "stopped" else "after_finish")
        return Earlier(next_number=next_number, changes=last.changes, reason=reason, seconds=seconds)
    counted = (*_since_asked(ended), last)
    decision = read_artifact(folders[-1] / DECISION)
    if decision.get("action") == "stop":
        furthest = max(counted, key=lambda outcome: outcome.step_reached)
        reason = Reason(kind="after_failure")
        return Earlier(next_number=next_number, changes=furthest.changes, reason=reason, seconds=seconds)
    changes = decision.get("changes", last.changes)
    return Earlier(
        next_number=next_number,
        counted=counted,
        rung=_rung_of(decision),
        changes=changes if isinstance(changes, dict) else {},
        reason=to_record(decision.get("reason"), Reason) or Reason(kind="supervisor_lost"),
        seconds=seconds,
    )


def read_pauses(run: Path) -> list[tuple[float, float]]:
    """When no attempt ran: from the end of each to the start of the next, which may be days after a stop."""
    outcomes = [outcome for folder in attempt_folders(run) if (outcome := read_record(folder, Outcome))]
    gaps = ((before.started + before.seconds, after.started) for before, after in itertools.pairwise(outcomes))
    return [(end, start) for end, start in gaps if start > end]


def is_left_running(run: Path) -> bool:
    """Say whether the newest attempt's process lives although it has no outcome, as when its supervisor was killed."""
    folders = attempt_folders(run)
    root = read_root(folders[-1]) if folders and not read_record(folders[-1], Outcome) else None
    found = find_member(root.pid) if root else None
    return found is not None and found.identity == root and not found.is_gone


def end_leftovers(run: Path) -> str:
    """End what a killed supervisor left running; say what was ended, or nothing."""
    said: list[str] = []
    folders = attempt_folders(run)
    if folders and not read_record(folders[-1], Outcome):
        _close_cut_off(folders[-1], said.append)
    return "".join(said)


def stopped_words(run: Path, outcome: Outcome) -> str:
    """Say where the run was stopped: an attempt that was still loading says nothing of how far earlier ones came."""
    if outcome.step_reached:
        return f"stopped as asked at step {outcome.step_reached}"
    if not outcome.number:
        return "stopped as asked before its first attempt had begun"
    before = newest_step(attempt_folder(run, number) for number in range(outcome.number - 1, 0, -1))
    phase = f" in phase {outcome.phase}" if outcome.phase else ""
    stood = f"; the attempt before had got to step {before}" if before else ""
    return f"stopped as asked{phase}, before the first step of attempt {outcome.number}{stood}"


def newest_step(attempts: Iterable[Path]) -> int:
    """The step that the first of these attempts with any step had reached."""
    reached = (newest_beat(attempt)[1] for attempt in attempts)
    return next((step for step in reached if step), 0)


def _close_cut_off(attempt: Path, on_leftover: Callable[[str], None]) -> Outcome:
    """End what still runs of an attempt whose supervisor is gone, and write down that it was cut off."""
    ended = end_tree(attempt, None)
    if ended.asked or ended.killed:
        count = len({*ended.asked, *ended.killed})
        on_leftover(f"ended {count} {'process' if count == 1 else 'processes'} that an earlier supervisor had left")
    phase, step, steps = newest_beat(attempt)
    rung = read_artifact(attempt / RUNG)
    started = float(rung.get("started") or _written_at(attempt / RUNG))
    outcome = Outcome(
        number=int(attempt.name),
        outcome="interrupted",
        rung=str(rung.get("rung", "")),
        rung_change=rung.get("rung_change", {}),
        changes=rung.get("changes", {}),
        sentence=f"cut off with its supervisor at step {step}" + (f" in phase {phase}" if phase else ""),
        phase=phase,
        step_reached=step,
        steps=steps,
        is_external=True,
        started=started,
        seconds=round(max(0.0, _last_word_at(attempt) - started), 3),
    )
    with contextlib.suppress(OSError):  # a full disk: it is closed again the next time
        write_artifact(attempt, OUTCOME, outcome)
    return outcome


def _since_asked(ended: list[tuple[Path, Outcome]]) -> tuple[Outcome, ...]:
    """The attempts since a person last had a word: after a stop, or once nothing was left, the count begins anew."""
    for at in range(len(ended) - 1, -1, -1):
        folder, outcome = ended[at]
        if outcome.outcome in ("stopped", "finished") or read_artifact(folder / DECISION).get("action") == "stop":
            return tuple(one for _, one in ended[at + 1 :])
    return tuple(one for _, one in ended)


def _rung_of(decision: Mapping[str, Any]) -> Rung | None:
    """The rung of a decision as it was written down."""
    rung = decision.get("rung")
    if decision.get("action") != "rung" or not isinstance(rung, dict):
        return None
    return Rung(
        str(rung.get("title", "")), rung.get("change") or {}, str(rung.get("cost", "")), bool(rung.get("keeps", True))
    )


def _last_word_at(attempt: Path) -> float:
    """When anything was last heard of an attempt that nobody saw end."""
    told = [*read_last_events(attempt / EVENTS)[-1:], *read_last_events(attempt / SAMPLES)[-1:]]
    return max((float(at) for event in told if isinstance(at := event.get("time"), int | float)), default=0.0)


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return time.time()
