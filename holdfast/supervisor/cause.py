"""Gathers, from the evidence of a failed attempt and its diagnosis, the facts that a sentence about it needs.

`runs/cause_wording.py` makes the sentence.
"""

import re
from collections.abc import Iterator

from holdfast.core.evidence import Cause, Diagnosis, Evidence, Frame, RuledOut, Seen
from holdfast.core.observations import (
    Asked,
    DiskSpace,
    ExitStatus,
    GivenUp,
    KernelKill,
    NoOomKill,
    Observation,
    OomKill,
    OwnCode,
    ProcessExit,
    RankStack,
    TreeVerdict,
    Verdict,
)
from holdfast.core.records import CollectedEvidence
from holdfast.logs.error_lines import first_lines

# What other processes of a job say after one of them has failed.
_ECHO = re.compile(
    r"ChildFailedError|failed \(exitcode: |CalledProcessError|SignalException"
    r"|Connection (?:closed|reset) by peer|Broken pipe"
)
_NATIVE_CRASH = "segfault-other"  # it claims no more than that native code crashed, so its frame is the proof


def find_cause(evidence: Evidence, diagnosis: Diagnosis, collected: CollectedEvidence) -> Cause:
    """Why an attempt failed, or what is known although the cause is not."""
    is_unknown = diagnosis.slug == "unknown"
    kill = next(evidence.observed(OomKill), None) if diagnosis.slug == "host-oom" else None
    ranks = tuple(evidence.observed(RankStack))
    places = (code for code in evidence.observed(OwnCode) if code.how in ("hung", "crashed"))
    verdict, given_up = next(evidence.observed(TreeVerdict), None), next(evidence.observed(GivenUp), None)
    return Cause(
        slug=diagnosis.slug,
        # A crash of native code claims no more than was seen of it.
        confidence="proven" if diagnosis.slug == _NATIVE_CRASH else diagnosis.confidence,
        title=diagnosis.title,
        exit=evidence.exits[0] if evidence.exits else None,
        phase=collected.phase,
        step=collected.step,
        steps=collected.steps,
        proof=_proof(diagnosis, verdict, given_up, ranks),
        verdict=verdict,
        given_up=given_up,
        ranks=ranks,
        place=next(places, None),
        crashed_in=_crashed_in(evidence) if diagnosis.slug == _NATIVE_CRASH else None,
        memory_kill=kill,
        victim=next(evidence.observed(KernelKill), None) if kill else None,
        resident_bytes=collected.resident_bytes if kill else None,
        error=_last_error(evidence) if is_unknown else "",
        first_exit=next((seen for seen in evidence.observed(ProcessExit) if seen.is_first), None),
        ruled_out=tuple(_ruled_out(evidence)) if is_unknown else (),
    )


def _ruled_out(evidence: Evidence) -> Iterator[RuledOut]:
    """What was asked on this system and answered with no."""
    asked = {question for one in evidence.observed(Asked) for question in one.questions}
    if any(evidence.observed(NoOomKill)):
        yield "memory_kill"
    if "process_exits" in asked and not any(evidence.observed(ProcessExit)):
        yield "crash_of_another_process"
    if "disks" in asked and not any(not space.is_shared_memory for space in evidence.observed(DiskSpace)):
        yield "full_disk"
    verdicts = tuple(evidence.observed(TreeVerdict))
    if "waits" in asked and any(seen.verdict is not Verdict.DEADLOCK for seen in verdicts):
        yield "deadlock"


def _proof(
    diagnosis: Diagnosis, verdict: TreeVerdict | None, given_up: GivenUp | None, ranks: tuple[RankStack, ...]
) -> Seen | None:
    """The strongest proof, what was observed before what was printed; None when the title says it already."""
    if given_up and verdict and len(verdict.ranks) > 1:  # it names the rank; the stacks say it better
        return None if ranks else given_up
    shown = [seen for seen in diagnosis.because if not _says_nothing_more(seen, diagnosis)]
    first = min(shown, key=lambda seen: not _is_observed(seen), default=None)
    if isinstance(first, ExitStatus):
        return None
    return given_up or first if isinstance(first, TreeVerdict) else first


def _says_nothing_more(seen: Seen, diagnosis: Diagnosis) -> bool:
    if isinstance(seen, Observation):
        return isinstance(seen, ExitStatus) and seen.is_hang
    return seen.text.strip() == diagnosis.title


def _is_observed(seen: Seen) -> bool:
    return isinstance(seen, Observation) and not isinstance(seen, ExitStatus)


def _crashed_in(evidence: Evidence) -> Frame | None:
    """The frame in which native code crashed, as far as the stack shows it."""
    crashed = [stack.frames[0] for stack in evidence.stacks if stack.crashed and stack.frames]
    return crashed[-1] if crashed else None


def _last_error(evidence: Evidence) -> str:
    """The last error in the output that is not the echo of another process's failure."""
    errors = [passage.text for passage in first_lines(evidence)]
    own = [error for error in errors if not _ECHO.search(error)]
    return (own or errors or [""])[-1]
