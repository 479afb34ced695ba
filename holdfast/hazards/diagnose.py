"""Names the cause of a failure from its evidence. A pure function: same evidence, same answer.

Weighing, in this order:
1. A `fallout` sign counts only when nothing else was seen.
2. A hazard that calls itself the more exact name of another (`over`) stands before it.
3. `proves` before `suggests`; a sign in an error or a frame before one in an ordinary line; the earlier line first,
   because what comes after the first error is mostly its echo.
4. A run that ended well did not die of an error or a crash it got past; and one that ended with an exception that no
   hazard knows is not explained by a mere hint elsewhere.

The answer is "proven" only if the proof is in an error, a stack or an observation, and no other cause is proven too.
"""

from collections.abc import Container
from dataclasses import dataclass

from holdfast.core.evidence import Diagnosis, Evidence, Passage, Seen
from holdfast.core.observations import ExitStatus
from holdfast.hazards import Hazard, Strength, all_hazards
from holdfast.hazards.harmless import Harmless, set_aside
from holdfast.hazards.ordinary_bug import find_bug

_WEIGHT: dict[Strength, int] = {"proves": 2, "suggests": 1, "fallout": 0}


def diagnose(evidence: Evidence) -> Diagnosis:
    """Name the cause, with its proof, or say that it is unknown."""
    evidence, harmless = set_aside(evidence)
    in_error = {passage.line for text in (evidence.errors, evidence.frames) for passage in text}
    in_error |= {status.line for status in evidence.exits}
    suspects = [suspect for hazard in all_hazards() if (suspect := _suspect(hazard, evidence, in_error))]
    suspects = [suspect for suspect in suspects if _can_explain(suspect, evidence)]
    if any(suspect.weight > 0 for suspect in suspects):
        suspects = [suspect for suspect in suspects if suspect.weight > 0]
    ranked = sorted(suspects, key=lambda suspect: suspect.rank(suspects))
    if not ranked:
        return _unknown(evidence, harmless)
    best = ranked[0]
    return Diagnosis(
        slug=best.hazard.slug,
        confidence="proven" if _is_proven(best, ranked, evidence) else "likely",
        title=best.hazard.title,
        because=best.because,
        runner_up=ranked[1].hazard.slug if len(ranked) > 1 else None,
        remedies=best.hazard.remedies,
        sources=best.hazard.sources,
        harmless=_harmless_notes(harmless),
    )


@dataclass(frozen=True, slots=True)
class _Suspect:
    hazard: Hazard
    weight: int
    because: tuple[Seen, ...]  # the strongest signs, those in an error or a stack first
    is_in_error: bool

    def rank(self, all_suspects: list["_Suspect"]) -> tuple[int, int, int, int]:
        """Smaller is the better explanation."""
        others = [other for other in all_suspects if other is not self]
        outranked_by = sum(self.hazard.is_last_resort or self.hazard.slug in other.hazard.over for other in others)
        return (outranked_by, -self.weight, not self.is_in_error, _line(self.because[0]))


def _is_proven(best: _Suspect, ranked: list[_Suspect], evidence: Evidence) -> bool:
    """True when the proof reaches the way the process ended and nothing else claims the same."""
    if best.weight < 2:
        return False
    if not best.is_in_error and evidence.errors and isinstance(best.because[0], Passage):
        return False  # a line in passing, while something else failed
    return not any(
        rival.weight == 2
        and rival.is_in_error
        and not rival.hazard.is_last_resort
        and rival.hazard.slug not in best.hazard.over
        and _line(rival.because[0]) != _line(best.because[0])
        for rival in ranked[1:]
    )


def _suspect(hazard: Hazard, evidence: Evidence, in_error: Container[int]) -> _Suspect | None:
    found = [(sign.strength, seen) for sign in hazard.signs if (seen := sign.find(evidence))]
    if not found:
        return None
    weight = max(_WEIGHT[strength] for strength, _ in found)
    strongest = [seen for strength, seen in found if _WEIGHT[strength] == weight]
    strongest.sort(key=lambda seen: (_line(seen) not in in_error, _line(seen)))
    once: dict[Seen | int, Seen] = {}  # a line that several signs match is told once, as the first of them tells it
    for seen in strongest:
        once.setdefault(seen.line if isinstance(seen, Passage) and seen.line else seen, seen)
    return _Suspect(hazard, weight, tuple(once.values()), _line(strongest[0]) in in_error)


def _line(seen: Seen) -> int:
    """The line of the log; 0 for what the supervisor saw."""
    return seen.line if isinstance(seen, Passage | ExitStatus) else 0


def _can_explain(suspect: _Suspect, evidence: Evidence) -> bool:
    """False for what does not reach the way this process ended."""
    if evidence.ended_well and suspect.hazard.kind in ("error", "crash"):
        return False  # caught, retried or stepped around: the run got past it
    if suspect.weight == 2:
        return True
    if evidence.ended_well and suspect.hazard.kind == "hang":
        return False
    return suspect.is_in_error or not evidence.errors


def _unknown(evidence: Evidence, harmless: tuple[tuple[Passage, Harmless], ...]) -> Diagnosis:
    bug = None if evidence.ended_well else find_bug(evidence)
    title = "the cause is not established"
    if evidence.ended_well:
        note = "The process ended with code 0 and nothing in its output is a known failure."
    elif bug and bug.kind == "interrupted":
        title = "the program was interrupted"
        note = "KeyboardInterrupt: Ctrl-C, a stopped notebook or SIGINT ended it, which is not a failure by itself."
    elif evidence.errors:
        errors = list(evidence.errors)
        error = next((one for one in errors if bug and one.line == bug.line), errors[-1])
        note = f"No known hazard explains this error; it may be an ordinary bug in the program: {error.text}"
    else:
        note = "Nothing in the output is a known failure."
    return Diagnosis(
        slug="unknown",
        confidence="unknown",
        title=title,
        note=note,
        bug=bug,
        harmless=_harmless_notes(harmless),
    )


def _harmless_notes(harmless: tuple[tuple[Passage, Harmless], ...]) -> tuple[str, ...]:
    first_lines: dict[str, int] = {}
    for passage, known in harmless:
        first_lines.setdefault(known.why, passage.line)
    return tuple(f"line {line} is harmless: {why}" for why, line in first_lines.items())
