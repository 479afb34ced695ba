"""Chooses what to do after an attempt failed: the named remedy, then the next safer rung, then stop and say so.

Pure functions of what was tried. Changes add up: a rung that did not help stays while the next is tried, unless it
reached nothing in this script or made things worse. Every attempt changes the plan or has got further than all before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from holdfast.core.errors import FallbacksFailed, MachineError
from holdfast.core.evidence import Decision, Diagnosis
from holdfast.core.plan import Remedy, Rung
from holdfast.hazards import find_hazard

Changes = Mapping[str, object]
Settle = Callable[[Changes, Mapping[str, object]], Changes]

DEFAULT_MAX_ATTEMPTS = 12
_MOST_FACTOR = 10  # attempts in all, for each that may be futile
_OUTSIDE_TRIES = 3  # kills from outside in a row that bring no progress, before the plan itself is doubted
_START_SECONDS = 10.0
_HALVINGS_AT_FIRST, _HALVINGS_IN_ALL = 2, 4  # of one thing, before something else is tried
_UNNAMED = {"unknown", "segfault-other"}
_OWN = {"script-deadlock", "script-abort"}  # of the program itself: chance may have had a part in it, no setting has
OWN_EXIT = "script-exit"
_NO_PROGRAM = "program-missing"
OF_RANKS = frozenset({"rank-lost", "rank-stuck"})  # one process of several: that may have been chance, the first time
_MACHINE_CANNOT = {"arch-mismatch", "disk-full", "illegal-instruction", "native-lib-missing", "torch-cpu-build"}
_ARITHMETIC = {"precision", "device", "compile", "packing"}  # settings that change how numbers are computed
# Errors that come again whatever is changed around them.
_SURE_BUGS = (
    *("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError"),
    *("NameError", "UnboundLocalError", "AttributeError", "TypeError"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The safer rungs of one kind of run, and how a change is written into its settings."""

    rungs: tuple[Rung, ...]
    remedies: Mapping[str, tuple[Rung, ...]] = field(default_factory=dict)  # of this kind of run alone, by slug
    final_codes: frozenset[int] = frozenset()  # exit codes by which the child says that no rung will help
    chance_seconds: float = float("inf")  # a hang after so long may have been chance once: work is kept
    settle: Settle  # (changes so far, a change) -> the changes with it; the same again where it means nothing here


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What the ladder needs to know of one attempt."""

    changes: Changes
    rung: Rung | None = None  # what it added to the attempt before
    ending: Literal["signal", "code", "hang"]
    exit_code: int | None = None
    slug: str = "unknown"
    error: str = ""  # the last exception, "ValueError: ..."
    place: str = ""  # where that exception was raised, or where it hung
    step_reached: int = 0
    phase: str = ""
    is_outside: bool = False  # ended by somebody else: a kill, a stop, a machine that slept
    seconds: float = float("inf")  # until its last sign of progress, where that is known
    void: frozenset[str] = field(default_factory=frozenset)  # settings that were seen to reach nothing in this script


def choose_rung(
    diagnosis: Diagnosis,
    tried: Sequence[Tried],
    ladder: Ladder,
    *,
    allow_changes: bool = False,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> Decision:
    """Pick the next attempt, or stop when nothing sensible is left."""
    last, before = tried[-1], tried[:-1]
    beaten = last.step_reached > max((one.step_reached for one in before), default=0)
    current = _standing(tried)
    again = Decision(action="again", because="", changes=current)
    if _futile(tried) >= max_attempts or len(tried) >= _MOST_FACTOR * max_attempts:
        return _stop(diagnosis, last, f"{len(tried)} attempts were made, the most that are allowed")
    if last.ending == "code" and last.exit_code in ladder.final_codes:
        return _stop(diagnosis, last, "no other plan helps against that", last.exit_code)
    if last.is_outside and not beaten and _killed_at_the_start(tried) >= _OUTSIDE_TRIES:
        return _stop(diagnosis, last, f"it was ended {len(tried)} times right after its start, whatever the plan")
    if last.is_outside and (beaten or _outside_in_a_row(tried) <= _OUTSIDE_TRIES):
        return _because(again, "it was ended from outside, which says nothing against the plan")
    if _made_worse(tried):
        worse = last.rung.title if last.rung else ""
        return _next_rung(diagnosis, tried, ladder, current, allow_changes) or _because(
            again, f"'{worse}' made it worse and is taken back"
        )
    if _is_own_exit(diagnosis, last):
        return _stop(diagnosis, last, "it ended by its own decision, with a code and no error", last.exit_code)
    if diagnosis.slug == OWN_EXIT and not beaten:
        code = last.exit_code if last.ending == "code" else None
        return _stop(diagnosis, last, "it would decide so again, whatever is changed around it", code)
    if diagnosis.slug == _NO_PROGRAM:
        return _stop(diagnosis, last, "no other plan helps against that", last.exit_code)
    if diagnosis.slug == "unknown" and last.ending == "code":
        return _after_exception(diagnosis, tried, beaten, again, ladder, allow_changes)
    if diagnosis.slug in OF_RANKS and not any(one.slug in OF_RANKS for one in before):
        return _because(again, "one process of several failed, which may have been chance")
    if beaten and _is_late_hang(last, ladder) and not any(one.slug == diagnosis.slug for one in before):
        return _because(again, f"it hung after {last.seconds / 60:.0f} minutes, which may have been chance")
    if diagnosis.slug not in _UNNAMED and (rung := _named_rung(diagnosis, tried, ladder, current)):
        return rung
    if beaten:
        return _because(again, f"it got to step {last.step_reached}, further than before")
    if diagnosis.slug in _OWN:
        if any(one.slug == diagnosis.slug and one.place == last.place for one in before):
            return _stop(diagnosis, last, f"the same again{_at(last)}; no remedy changes that")
        return _because(again, "once more, in case it was chance: no setting changes what the program does by itself")
    if rung := _next_rung(diagnosis, tried, ladder, current, allow_changes):
        return rung
    return _stop(diagnosis, last, "nothing is left to try")


def _named_rung(diagnosis: Diagnosis, tried: Sequence[Tried], ladder: Ladder, current: Changes) -> Decision | None:
    """The first remedy that really changes the plan; one that halves may be taken a few times in a row."""
    keeping = _keeping(diagnosis, ladder, tried[-1].phase)
    taken = Counter(one.rung.title for one in tried if one.rung)
    remedies = [rung for rung in keeping if taken[rung.title] < _HALVINGS_AT_FIRST]
    remedies += [rung for rung in keeping if _HALVINGS_AT_FIRST <= taken[rung.title] < _HALVINGS_IN_ALL]
    return _first_that_changes([(rung, _named(diagnosis)) for rung in remedies], tried, ladder, current)


def _next_rung(
    diagnosis: Diagnosis, tried: Sequence[Tried], ladder: Ladder, current: Changes, allow_changes: bool
) -> Decision | None:
    """The first remedy, else the first generic rung, that really changes the plan."""
    if rung := _named_rung(diagnosis, tried, ladder, current):
        return rung
    changing = [_of(remedy) for remedy in diagnosis.remedies if remedy.change and not remedy.keeps]
    hazard = find_hazard(diagnosis.slug)
    generic = _generic(hazard.kind if hazard else "", ladder)
    taken = {one.rung.title for one in tried if one.rung}
    offered = [(rung, "the next safer rung") for rung in generic if rung.title not in taken]
    offered += [(rung, f"once more, {_named(diagnosis)}") for rung in _keeping(diagnosis, ladder, tried[-1].phase)]
    if allow_changes:
        offered += [(rung, f"{_named(diagnosis)}; changes what is learned, which was allowed") for rung in changing]
    return _first_that_changes(offered, tried, ladder, current)


def _generic(kind: str, ladder: Ladder) -> tuple[Rung, ...]:
    """The safer rungs that can have to do with a hazard of this kind."""
    if kind == "error":  # one that has a name is of program or data: no safer setting cures it
        return ()
    if kind == "wrong-results":  # where processes start and who loads data does not change a number
        return tuple(rung for rung in ladder.rungs if _ARITHMETIC & rung.change.keys())
    return ladder.rungs


def _first_that_changes(
    offered: Iterable[tuple[Rung, str]], tried: Sequence[Tried], ladder: Ladder, current: Changes
) -> Decision | None:
    """The first rung that changes something this script has, and that has not made things worse before."""
    refused = _refused(tried)
    void = frozenset().union(*(one.void for one in tried))
    for rung, because in offered:
        changes = ladder.settle(current, rung.change)
        new = {name for name, value in changes.items() if current.get(name) != value}
        if new - void and dict(rung.change) not in refused:
            return Decision(action="rung", because=because, rung=rung, changes=changes)
    return None


def _keeping(diagnosis: Diagnosis, ladder: Ladder, phase: str) -> list[Rung]:
    """The remedies that the ladder may apply by itself, those of this kind of run, and of this phase, first."""
    own = ladder.remedies.get(diagnosis.slug, ())
    rungs = [*own, *(_of(remedy) for remedy in diagnosis.remedies if remedy.change and remedy.keeps)]
    evaluating = [rung for rung in rungs if set(rung.change) == {"eval_micro_batch"}]
    others = [rung for rung in rungs if rung not in evaluating]
    if phase == "evaluate":
        return [*evaluating, *others]
    return [*others, *evaluating] if not phase else others


def _named(diagnosis: Diagnosis) -> str:
    return f"remedy for: {diagnosis.title}"


def _after_exception(
    diagnosis: Diagnosis, tried: Sequence[Tried], beaten: bool, again: Decision, ladder: Ladder, allow_changes: bool
) -> Decision:
    """An exception that no hazard knows is mostly a bug of the program: one more try at the most."""
    last, before = tried[-1], tried[:-1]
    if not last.error and any((one.error, one.exit_code) == ("", last.exit_code) for one in before):
        return _stop(diagnosis, last, "it left by the same code again, without an error", last.exit_code)
    kind = last.error.partition(":")[0].rpartition(".")[2]
    if any(one.error and (one.error, one.place) == (last.error, last.place) for one in before):
        return _stop(diagnosis, last, f"the same error again{_at(last)}; no remedy changes that")
    if kind in _SURE_BUGS:
        return _stop(diagnosis, last, "this error comes again however often it is tried")
    if any(one.slug == "unknown" and one.error for one in before) and not beaten:
        return _stop(diagnosis, last, "an error without a known cause came again")
    if beaten:
        return _because(again, f"the error has no known cause; once more from step {last.step_reached} or before")
    return _next_rung(diagnosis, tried, ladder, again.changes, allow_changes) or _stop(
        diagnosis, last, "an error without a known cause, and nothing to change"
    )


def _standing(tried: Sequence[Tried]) -> dict[str, object]:
    """The changes that stay: those of the last attempt, less what reached nothing and what made things worse."""
    last = tried[-1]
    changes = dict(tried[-2].changes if _made_worse(tried) else last.changes)
    return {name: value for name, value in changes.items() if name not in last.void}


def _made_worse(tried: Sequence[Tried]) -> bool:
    """True when a new rung brought an error that the attempt before it did not have, and no step more."""
    if len(tried) < 2 or tried[-1].rung is None or not tried[-1].error:
        return False
    last, before = tried[-1], tried[-2]
    is_other_error = (last.error, last.place) != (before.error, before.place)
    return last.ending == "code" and is_other_error and last.step_reached <= before.step_reached and not before.error


def _refused(tried: Sequence[Tried]) -> list[dict[str, object]]:
    """The changes of rungs that made things worse."""
    ends = [tried[: at + 1] for at in range(1, len(tried))]
    return [dict(end[-1].rung.change) for end in ends if end[-1].rung and _made_worse(end)]


def _is_late_hang(last: Tried, ladder: Ladder) -> bool:
    return last.ending == "hang" and ladder.chance_seconds <= last.seconds < float("inf")


def _futile(tried: Sequence[Tried]) -> int:
    """How many attempts got no further than those before them; what gets further is never given up early."""
    best, count = 0, 0
    for one in tried:
        count += one.step_reached <= best
        best = max(best, one.step_reached)
    return count


def _killed_at_the_start(tried: Sequence[Tried]) -> int:
    """How often in a row it was ended from outside within seconds, before it had begun to train."""
    count = 0
    for one in reversed(tried):
        is_early = one.seconds < _START_SECONDS and not one.step_reached and one.phase in ("", "start")
        if not (one.is_outside and is_early):
            break
        count += 1
    return count


def _at(last: Tried) -> str:
    return f" at {last.place}" if last.place else ""


def _outside_in_a_row(tried: Sequence[Tried]) -> int:
    count = 0
    for one in reversed(tried):
        if not one.is_outside:
            break
        count += 1
    return count


def _is_own_exit(diagnosis: Diagnosis, last: Tried) -> bool:
    """True when a program left by its own code without an error in its output, as after a wrong argument."""
    return diagnosis.slug == "unknown" and last.ending == "code" and not last.error and not last.step_reached


def _of(remedy: Remedy) -> Rung:
    return Rung(remedy.title, remedy.change or {}, remedy.cost, remedy.keeps)


def _because(decision: Decision, because: str) -> Decision:
    return Decision(action=decision.action, because=because, changes=decision.changes)


def _stop(diagnosis: Diagnosis, last: Tried, because: str, exit_code: int | None = None) -> Decision:
    code = MachineError.exit_code if diagnosis.slug in _MACHINE_CANNOT else FallbacksFailed.exit_code
    return Decision(action="stop", because=because, changes=last.changes, exit_code=exit_code or code)
