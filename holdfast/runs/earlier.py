"""Reads what earlier supervisors of a run left, and ends what they left running.

An attempt without an outcome was cut off with its supervisor: by a kill, a crash or a restart of the machine. It says
nothing against its plan. A run that was stopped or had failed is a new question, with the plan it last had.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.runfolder import DECISION, OUTCOME, RUNG, attempt_folders
from holdfast.planning.ladder import Changes
from holdfast.supervisor.ending import end_tree
from holdfast.supervisor.outcome import Outcome, newest_beat, read_outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Where a run stands before it is supervised again."""

    next_number: int = 1
    counted: tuple[Outcome, ...] = ()  # attempts of the same question, which the ladder counts
    changes: Changes = field(default_factory=dict)
    because: str = ""


def read_earlier(run: Path, on_leftover: Callable[[str], None]) -> Earlier:
    """Look at every earlier attempt; end the processes of the one that was cut off."""
    folders = attempt_folders(run)
    if not folders:
        return Earlier()
    if not read_outcome(folders[-1]):
        _close_cut_off(folders[-1], on_leftover)
    outcomes = [outcome for folder in folders if (outcome := read_outcome(folder))]
    next_number, last = int(folders[-1].name) + 1, outcomes[-1]
    if last.outcome in ("stopped", "finished"):
        because = f"{last.outcome} before; it goes on where it stood"
        return Earlier(next_number=next_number, changes=last.changes, because=because)
    counted = _since_asked(outcomes)
    decision = read_artifact(folders[-1] / DECISION)
    if decision.get("action") == "stop":
        furthest = max(counted, key=lambda outcome: outcome.step_reached)
        because = "it had failed before; once more with the plan that got furthest"
        return Earlier(next_number=next_number, changes=furthest.changes, because=because)
    changes = decision.get("changes", last.changes)
    because = str(decision.get("because") or "its supervisor was gone; it goes on where it stood")
    return Earlier(
        next_number=next_number, counted=counted, changes=changes if isinstance(changes, dict) else {}, because=because
    )


def end_leftovers(run: Path) -> str:
    """End what a killed supervisor left running; say what was ended, or nothing."""
    said: list[str] = []
    folders = attempt_folders(run)
    if folders and not read_outcome(folders[-1]):
        _close_cut_off(folders[-1], said.append)
    return "".join(said)


def _close_cut_off(attempt: Path, on_leftover: Callable[[str], None]) -> None:
    """End what still runs of an attempt whose supervisor is gone, and write down that it was cut off."""
    ended = end_tree(attempt, None)
    if ended.asked or ended.killed:
        on_leftover(f"ended {len({*ended.asked, *ended.killed})} processes that an earlier supervisor had left")
    phase, step, steps = newest_beat(attempt)
    rung = read_artifact(attempt / RUNG)
    write_artifact(
        attempt,
        OUTCOME,
        Outcome(
            number=int(attempt.name),
            outcome="interrupted",
            rung=str(rung.get("rung", "")),
            rung_change=rung.get("rung_change", {}),
            changes=rung.get("changes", {}),
            sentence=f"cut off with its supervisor at step {step}" + (f" in phase {phase}" if phase else ""),
            phase=phase,
            step_reached=step,
            steps=steps,
            is_outside=True,
            started=attempt.stat().st_mtime or time.time(),
        ),
    )


def _since_asked(outcomes: list[Outcome]) -> tuple[Outcome, ...]:
    """The attempts since a person last had a word: after a stop the count begins anew."""
    for at in range(len(outcomes) - 1, -1, -1):
        if outcomes[at].outcome in ("stopped", "finished"):
            return tuple(outcomes[at + 1 :])
    return tuple(outcomes)
