"""How an attempt of several machines went as a whole: which machine's part made it fail. No clocks are compared.

When one rank fails, all others fail within milliseconds, each with its own error, and the clocks of two machines do not
tell which came first. What they left does: a signal comes before an exception, an exception before a broken connection,
a stopped rank before those that wait for it.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from holdfast.core.evidence import Diagnosis, Evidence
from holdfast.core.observations import ProcessExit, TreeVerdict, Verdict
from holdfast.core.records import CollectedEvidence, Interruption, MeetingPlace, Outcome, read_record, write_record
from holdfast.core.runfolder import DIAGNOSIS, EVIDENCE, NODES, part_folder
from holdfast.hazards.diagnose import diagnose
from holdfast.supervisor.attempt import NOTHING
from holdfast.supervisor.outcome import newest_beat

_ECHOES = {"nccl-timeout", "rank-stuck"}  # what ranks report that were waiting for another rank
_ECHO = re.compile(
    r"Connection (?:closed|reset|refused)|Broken pipe|ChildFailedError|SignalException|Socket Timeout"
    r"|DistNetworkError|DistStoreError|RendezvousConnectionError|RendezvousTimeoutError|failed to recv"
)
_UNMET = re.compile(
    r"client socket has (?:failed to connect|timed out)|Timed out after \d+ seconds waiting for clients"
)
_ENDED_ALONG = 143  # by SIGTERM; or our engine, which saves and ends when a rank elsewhere is asked to
_WORST_FIRST = (
    *(Verdict.STOPPED, Verdict.DEADLOCK, Verdict.CRASH_LOOP, Verdict.KERNEL, Verdict.MOVING, Verdict.STARVED),
    Verdict.SLEEPING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """One machine's part of an attempt, as far as it is known."""

    node: str
    outcome: Outcome | None = None  # None if it stopped reporting
    evidence: Evidence = Evidence()
    silent_seconds: float = 0.0
    is_restarted: bool = False  # another supervisor now reports for this machine

    @property
    def has_failed(self) -> bool:
        """True if it died, hung, or is gone; False if it only ended with the others."""
        return self.outcome is None or self.outcome.outcome in ("died", "hung")


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAttempt:
    """All that is known of an attempt once each machine's part is over."""

    attempt: Path
    number: int
    mine: NodePart  # of the machine that leads
    others: tuple[NodePart, ...]
    leaving: tuple[str, ...] = ()  # machines that were asked to stop
    meeting: MeetingPlace = MeetingPlace()
    is_stopped: bool = False  # by a person
    is_lost: bool = False  # another machine now leads the run


def judge(joint: JointAttempt, outcome: Outcome, diagnosis: Diagnosis) -> tuple[Outcome, Diagnosis]:
    """How the attempt went as a whole: as the part that made it fail says. Keeps that part's evidence."""
    attempt, parts = joint.attempt, (joint.mine, *joint.others)
    # The last sample may have seen a launcher whose ranks were gone already.
    reached = [newest_beat(part)[1] for part in (attempt, *(part_folder(attempt, one.node) for one in joint.others))]
    step = max(outcome.step_reached, *reached)
    early = tuple(part.node for part in parts if not part.outcome or part.outcome.outcome != "finished")
    if not early or (outcome.outcome == "stopped" and (joint.is_stopped or joint.is_lost)):
        return outcome, diagnosis
    if joint.leaving and not joint.is_stopped:
        return _cut_off(outcome, Interruption(kind="asked_to_leave", nodes=joint.leaving), step), diagnosis
    culprit = find_culprit(parts)
    if culprit is None and joint.is_stopped:
        return replace(outcome, outcome="stopped", step_reached=step), diagnosis
    if culprit is None:
        return _cut_off(outcome, Interruption(kind="ended_early", nodes=early), step), diagnosis
    whole, named = told_by(culprit, joint.number)
    if culprit is joint.mine:
        named = diagnosis
    else:
        _keep_evidence(attempt, joint.mine.node, culprit)
    unmet = _UNMET.search(culprit.evidence.errors.joined) if joint.meeting.host and not step else None
    if unmet:
        whole, named = _unreachable(whole, joint, unmet[0]), NOTHING
    return replace(
        whole,
        phase=whole.phase or outcome.phase,
        step_reached=step,
        steps=max(whole.steps, outcome.steps),
        started=outcome.started,
        seconds=outcome.seconds,
    ), named


def find_culprit(parts: Sequence[NodePart]) -> NodePart | None:
    """The part that made the others fail; None if no part failed."""
    failed = [part for part in parts if part.has_failed]
    return min(failed, key=_rank, default=None)


def told_by(part: NodePart, number: int) -> tuple[Outcome, Diagnosis]:
    """How the attempt ended, according to the part that caused it, which is named."""
    if part.outcome is None:
        lost = Interruption(
            kind="supervisor_restarted" if part.is_restarted else "not_heard_from",
            nodes=(part.node,),
            seconds=part.silent_seconds,
        )
        return Outcome(number=number, outcome="died", interruption=lost, is_external=True, diagnosis="unknown"), NOTHING
    if part.outcome.interruption:
        named = structs.replace(part.outcome.interruption, nodes=(part.node,))
        return replace(part.outcome, interruption=named), diagnose(part.evidence)
    if part.outcome.cause is None:
        return part.outcome, diagnose(part.evidence)
    cause = structs.replace(part.outcome.cause, node=part.node)
    return replace(part.outcome, cause=cause), diagnose(part.evidence)


def _rank(part: NodePart) -> tuple[int, int, str]:
    """Smaller is the better explanation."""
    outcome, evidence = part.outcome, part.evidence
    if outcome is None:
        return (1, 0, part.node)  # after a signal, which may be what ended the machine's supervisor, too
    if outcome.outcome == "hung":
        verdict = next((seen.verdict for seen in evidence.observed(TreeVerdict)), None)
        return (4, _WORST_FIRST.index(verdict) if verdict in _WORST_FIRST else len(_WORST_FIRST), part.node)
    if outcome.exit_code == _ENDED_ALONG:
        return (5, 0, part.node)
    if (outcome.exit_code or 0) < 0 or any(map(_ended_by_own_signal, evidence.observed(ProcessExit))):
        return (0, 0, part.node)
    if outcome.diagnosis not in (None, "unknown") and outcome.diagnosis not in _ECHOES:
        return (2, 0 if outcome.confidence == "proven" else 1, part.node)
    errors = [passage.text for passage in part.evidence.errors]
    if any(not _ECHO.search(error) for error in errors):
        return (3, 0, part.node)
    return (5, 0, part.node)


def _ended_by_own_signal(one: ProcessExit) -> bool:
    return one.status.signal not in ("", "SIGTERM")  # a launcher asks its other ranks to end by SIGTERM


def _cut_off(outcome: Outcome, why: Interruption, step: int) -> Outcome:
    return replace(outcome, outcome="interrupted", interruption=why, cause=None, step_reached=step, is_external=True)


def _unreachable(outcome: Outcome, joint: JointAttempt, message: str) -> Outcome:
    """The ranks of another machine could not connect to the leader's; their errors say only that."""
    meeting = joint.meeting
    why = Interruption(
        kind="unreachable", nodes=(joint.mine.node,), host=meeting.host, port=meeting.port, message=message
    )
    outcome = replace(outcome, interruption=why, cause=None, diagnosis="unknown", confidence="unknown", error="")
    return replace(outcome, is_external=True)


def _keep_evidence(attempt: Path, me: str, culprit: NodePart) -> None:
    """Let the attempt's evidence lead to the part that failed; what this machine saw is kept next to it."""
    own, there = part_folder(attempt, me), part_folder(attempt, culprit.node)
    with contextlib.suppress(OSError):
        own.mkdir(parents=True, exist_ok=True)
        for name in (EVIDENCE, DIAGNOSIS):
            if (attempt / name).exists():
                (attempt / name).replace(own / name)
        seen = read_record(there, CollectedEvidence) or CollectedEvidence()
        write_record(attempt, structs.replace(seen, part=f"{NODES}/{culprit.node}"))
        if named := read_record(there, Diagnosis):
            write_record(attempt, named)
