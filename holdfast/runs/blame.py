"""Decides which machine's part made an attempt of several machines fail. Pure: no clocks are compared.

When one rank fails, all others fail within milliseconds, each with its own error, and the clocks of two machines do not
tell which came first. What they left does: a signal comes before an exception, an exception before a broken connection,
a stopped rank before those that wait for it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from holdfast.core.evidence import Diagnosis, Evidence
from holdfast.core.observations import ProcessExit, TreeVerdict, Verdict
from holdfast.core.records import Interruption, Outcome
from holdfast.hazards.diagnose import diagnose
from holdfast.supervisor.attempt import NOTHING

_ECHOES = {"nccl-timeout", "rank-stuck"}  # what ranks report that waited for another
_ECHO = re.compile(
    r"Connection (?:closed|reset|refused)|Broken pipe|ChildFailedError|SignalException|Socket Timeout"
    r"|DistNetworkError|DistStoreError|RendezvousConnectionError|RendezvousTimeoutError|failed to recv"
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
    outcome: Outcome | None = None  # None: it has not reported any more
    evidence: Evidence = Evidence()
    silent_seconds: float = 0.0
    is_anew: bool = False  # another supervisor reports for this machine by now

    @property
    def is_lost(self) -> bool:
        """True when its supervisor is gone."""
        return self.outcome is None

    @property
    def has_failed(self) -> bool:
        """True when it died, hung, or is gone; not when it only ended with the others."""
        return self.outcome is None or self.outcome.outcome in ("died", "hung")


def find_culprit(parts: Sequence[NodePart]) -> NodePart | None:
    """The part that made the others fail; None when none has failed."""
    failed = [part for part in parts if part.has_failed]
    return min(failed, key=_rank, default=None)


def told_by(part: NodePart, number: int) -> tuple[Outcome, Diagnosis]:
    """How the attempt ended, by the part that is to blame, which is named."""
    if part.outcome is None:
        lost = Interruption(
            kind="supervisor_restarted" if part.is_anew else "not_heard_from",
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
