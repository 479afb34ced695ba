"""Reads what earlier supervisors of a run left, and ends the processes they left running.

An attempt without an outcome was cut off with its supervisor: by a kill, a crash or a restart of the machine. That is
no reason to change its settings, so they are tried again. After a stop or a failure, a resumed run counts its attempts
from zero, with the settings it had last.
"""

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.event_log import EventSink, read_last_events
from holdfast.core.events import Event, ProcessesEnded
from holdfast.core.evidence import Decision
from holdfast.core.observations import LeftProcess
from holdfast.core.plan import Fallback, Reason
from holdfast.core.records import AttemptStart, Changes, Interruption, Outcome, read_record, write_record
from holdfast.core.runfolder import EVENTS, SAMPLES, START, attempt_folders
from holdfast.supervisor.ending import end_tree
from holdfast.supervisor.members import find_member, read_root
from holdfast.supervisor.outcome import newest_beat


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """The state of a run before it is supervised again."""

    next_number: int = 1
    counted: tuple[Outcome, ...] = ()  # attempts that the ladder counts
    fallback: Fallback | None = None  # what was decided and not yet tried
    changes: Changes = field(default_factory=dict)
    reason: Reason = Reason(kind="as_requested")
    seconds: float = 0.0  # duration of all earlier attempts, without the time between a stop and its resume


def read_earlier(run: Path, report: EventSink) -> EarlierAttempts:
    """The outcome of every earlier attempt; ends the processes of an interrupted one."""
    folders = attempt_folders(run)
    if not folders:
        return EarlierAttempts()
    ended = [(folder, outcome) for folder in folders[:-1] if (outcome := read_record(folder, Outcome))]
    last = read_record(folders[-1], Outcome) or _close_cut_off(folders[-1], report)
    next_number = int(folders[-1].name) + 1
    seconds = last.seconds + sum(outcome.seconds for _, outcome in ended)
    if last.outcome in ("stopped", "finished"):
        reason = Reason(kind="after_stop" if last.outcome == "stopped" else "after_finish")
        return EarlierAttempts(next_number=next_number, changes=last.changes, reason=reason, seconds=seconds)
    counted = (*_since_reset(ended), last)
    decision = read_record(folders[-1], Decision)
    if decision and decision.action == "stop":
        furthest = max(counted, key=lambda outcome: outcome.step_reached)
        reason = Reason(kind="after_failure")
        return EarlierAttempts(next_number=next_number, changes=furthest.changes, reason=reason, seconds=seconds)
    return EarlierAttempts(
        next_number=next_number,
        counted=counted,
        fallback=decision.fallback if decision and decision.action == "fallback" else None,
        changes=decision.changes if decision else last.changes,
        reason=decision.reason if decision else Reason(kind="supervisor_lost"),
        seconds=seconds,
    )


def read_pauses(run: Path) -> list[tuple[float, float]]:
    """When no attempt ran: from the end of each to the start of the next, which may be days after a stop."""
    outcomes = [outcome for folder in attempt_folders(run) if (outcome := read_record(folder, Outcome))]
    gaps = ((before.started + before.seconds, after.started) for before, after in itertools.pairwise(outcomes))
    return [(end, start) for end, start in gaps if start > end]


def is_left_running(run: Path) -> bool:
    """True if the newest attempt has no outcome but its process is alive, as after its supervisor was killed."""
    folders = attempt_folders(run)
    root = read_root(folders[-1]) if folders and not read_record(folders[-1], Outcome) else None
    found = find_member(root.pid) if root else None
    return found is not None and found.identity == root and not found.is_gone


def end_leftovers(run: Path) -> tuple[LeftProcess, ...]:
    """End the processes that a killed supervisor left running; return them."""
    ended: list[LeftProcess] = []

    def collect(event: Event) -> None:
        if isinstance(event, ProcessesEnded):
            ended.extend(event.processes)

    folders = attempt_folders(run)
    if folders and not read_record(folders[-1], Outcome):
        _close_cut_off(folders[-1], collect)
    return tuple(ended)


def _close_cut_off(attempt: Path, report: EventSink) -> Outcome:
    """End what still runs of an attempt whose supervisor is gone, and write down that it was cut off."""
    ended = end_tree(attempt, None)
    if pids := sorted({*ended.asked, *ended.killed}):
        report(ProcessesEnded(processes=[LeftProcess(pid=pid) for pid in pids]))
    phase, step, steps = newest_beat(attempt)
    start = read_record(attempt, AttemptStart) or AttemptStart(number=int(attempt.name))
    started = start.started or _written_at(attempt / START)
    outcome = Outcome(
        number=int(attempt.name),
        outcome="interrupted",
        fallback=start.fallback,
        fallback_change=start.fallback_change,
        changes=start.changes,
        interruption=Interruption(kind="supervisor_killed", step=step, phase=phase),
        phase=phase,
        step_reached=step,
        steps=steps,
        is_external=True,
        started=started,
        seconds=round(max(0.0, _last_sign_at(attempt) - started), 3),
    )
    with contextlib.suppress(OSError):  # on a full disk, this is repeated the next time
        write_record(attempt, outcome)
    return outcome


def _since_reset(ended: list[tuple[Path, Outcome]]) -> tuple[Outcome, ...]:
    """The attempts that the ladder counts: after a stop, or once every fallback was tried, a resume starts again."""
    for at in range(len(ended) - 1, -1, -1):
        folder, outcome = ended[at]
        decision = read_record(folder, Decision)
        if outcome.outcome in ("stopped", "finished") or (decision and decision.action == "stop"):
            return tuple(one for _, one in ended[at + 1 :])
    return tuple(one for _, one in ended)


def _last_sign_at(attempt: Path) -> float:
    """The time of the last event of an attempt whose end was not recorded."""
    last = [*read_last_events(attempt / EVENTS)[-1:], *read_last_events(attempt / SAMPLES)[-1:]]
    return max((event.time for event in last), default=0.0)


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return time.time()
