"""Decides what follows a failed attempt: the named remedy, then the next fallback, then stop and say so.

Pure functions of what was tried. Changes add up: a fallback that did not help stays while the next one is tried, unless
it had no effect in this script or made things worse. Every attempt changes the settings or got further than all before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from holdfast.core.errors import FallbacksFailed, MachineError
from holdfast.core.evidence import Decision, Diagnosis
from holdfast.core.plan import Fallback, Reason, Remedy
from holdfast.core.settings import DEFAULT_MAX_ATTEMPTS, TOTAL_ATTEMPTS_FACTOR
from holdfast.hazards import find_hazard

Changes = Mapping[str, object]
Apply = Callable[[Changes, Mapping[str, object]], Changes]

_EXTERNAL_TRIES = 3  # external kills in a row without progress, before the settings themselves are doubted
_START_SECONDS = 10.0
_HALVINGS_AT_FIRST, _HALVINGS_IN_ALL = 2, 4  # of one setting, before another fallback is tried
_UNNAMED = {"unknown", "segfault-other"}
_OWN_FAILURES = {"script-deadlock", "script-abort"}  # of the program itself: perhaps chance, but no setting cures them
OWN_EXIT = "script-exit"
_PROGRAM_MISSING = "program-missing"
OF_RANKS = frozenset({"rank-lost", "rank-stuck"})  # one process of several: the first time it may have been chance
_MACHINE_CANNOT = {"arch-mismatch", "disk-full", "illegal-instruction", "native-lib-missing", "torch-cpu-build"}
_ARITHMETIC = {"precision", "device", "compile", "packing"}  # settings that change how numbers are computed
# Errors that return whatever is changed around them.
_CERTAIN_BUGS = (
    *("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError"),
    *("NameError", "UnboundLocalError", "AttributeError", "TypeError"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The fallbacks of one kind of run, and how a change is written into its settings."""

    fallbacks: tuple[Fallback, ...]
    remedies: Mapping[str, tuple[Fallback, ...]] = field(default_factory=dict)  # of this kind of run alone, by slug
    final_codes: frozenset[int] = frozenset()  # exit codes by which the child says that no fallback will help
    chance_seconds: float = float("inf")  # a first hang after this long may have been chance, so nothing is changed
    apply: Apply  # (changes so far, a change) -> the changes with it; unchanged where the change means nothing here


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What the ladder needs to know of one attempt."""

    changes: Changes
    fallback: Fallback | None = None  # what it added to the attempt before
    ending: Literal["signal", "code", "hang"]
    exit_code: int | None = None
    slug: str = "unknown"
    error: str = ""  # the last exception, "ValueError: ..."
    place: str = ""  # where the exception was raised, or where the attempt hung
    step_reached: int = 0
    phase: str = ""
    is_outside: bool = False  # ended externally: a kill, a stop, a machine that slept
    has_waited_outside: bool = False  # for something alive outside of the training, until it was given up
    seconds: float = float("inf")  # until its last sign of progress, if known
    ineffective: frozenset[str] = field(default_factory=frozenset)  # settings that had no effect in this script


def choose_fallback(
    diagnosis: Diagnosis,
    tried: Sequence[Tried],
    ladder: Ladder,
    *,
    allow_changes: bool = False,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> Decision:
    """Pick the next attempt, or stop when nothing sensible is left.

    The order of the checks matters, because each one relies on those above it: limits; endings that say nothing about
    the settings; a fallback that did harm; endings that no setting can change; chance; the remedy; progress; the rest.
    """
    last, before = tried[-1], tried[:-1]
    has_progress = last.step_reached > max((one.step_reached for one in before), default=0)
    current = _kept_changes(tried)

    def again(reason: Reason) -> Decision:
        return Decision(action="again", reason=reason, changes=current)

    def stop(reason: Reason, exit_code: int | None = None) -> Decision:
        code = MachineError.exit_code if diagnosis.slug in _MACHINE_CANNOT else FallbacksFailed.exit_code
        return Decision(action="stop", reason=reason, changes=last.changes, exit_code=exit_code or code)

    # Limits come first, so that no rule below can keep a run going forever.
    if (stuck := _attempts_without_progress(tried)) >= max_attempts:
        return stop(Reason(kind="no_progress_limit", attempts=stuck))
    if len(tried) >= TOTAL_ATTEMPTS_FACTOR * max_attempts:
        return stop(Reason(kind="attempt_limit", attempts=len(tried)))
    # Our own engine has already said that the request or the machine is at fault.
    if last.ending == "code" and last.exit_code in ladder.final_codes:
        return stop(Reason(kind="final_exit_code"), last.exit_code)
    # An external kill says nothing about the settings, so its diagnosis is not asked. Only many in a row without
    # progress look like the run's own doing, such as an out-of-memory killer that leaves no trace.
    if last.is_outside and not has_progress and _killed_at_start(tried) >= _EXTERNAL_TRIES:
        return stop(Reason(kind="killed_at_start", attempts=len(tried)))
    if last.has_waited_outside and not has_progress and _killed_externally_in_a_row(tried) > _EXTERNAL_TRIES:
        return stop(Reason(kind="waited_outside"))
    if last.has_waited_outside:
        return again(Reason(kind="waited_outside"))
    if last.is_outside and (has_progress or _killed_externally_in_a_row(tried) <= _EXTERNAL_TRIES):
        return again(Reason(kind="killed_externally"))
    # A new error right after a new fallback is blamed on the fallback, not diagnosed: before any rule about errors.
    if _made_worse(tried):
        harmful = Reason(kind="made_worse", title=last.fallback.title if last.fallback else "")
        return _next_fallback(diagnosis, tried, ladder, current, allow_changes) or again(harmful)
    # The program ended by its own decision: it would decide the same again.
    if _is_unexplained_exit(diagnosis, last):
        return stop(Reason(kind="unexplained_exit"), last.exit_code)
    if diagnosis.slug == OWN_EXIT and not has_progress:
        return stop(Reason(kind="deliberate_exit"), last.exit_code if last.ending == "code" else None)
    if diagnosis.slug == _PROGRAM_MISSING:
        return stop(Reason(kind="program_missing"), last.exit_code)
    # An exception without a hazard is mostly a bug of the program, so it gets one more attempt at most.
    if diagnosis.slug == "unknown" and last.ending == "code":
        return _after_exception(diagnosis, tried, has_progress, ladder, allow_changes, again, stop)
    # What may have been chance is repeated once as it was: a remedy would make the whole rest of the run slower.
    if diagnosis.slug in OF_RANKS and not any(one.slug in OF_RANKS for one in before):
        return again(Reason(kind="rank_chance"))
    if has_progress and _is_late_hang(last, ladder) and not any(one.slug == diagnosis.slug for one in before):
        return again(Reason(kind="hang_chance", seconds=last.seconds))
    # A known cause gets its remedy even if the attempt got further: it would fail in the same way again.
    if diagnosis.slug not in _UNNAMED and (fallback := _named_fallback(diagnosis, tried, ladder, current)):
        return fallback
    # Without a remedy, progress is reason enough to continue from the last checkpoint.
    if has_progress:
        return again(Reason(kind="progress", step=last.step_reached))
    if diagnosis.slug in _OWN_FAILURES:
        if any(one.slug == diagnosis.slug and one.place == last.place for one in before):
            return stop(Reason(kind="same_failure", place=last.place))
        return again(Reason(kind="own_failure_chance"))
    given_up = Reason(kind="nothing_left" if any(one.fallback for one in tried) else "no_fallback")
    return _next_fallback(diagnosis, tried, ladder, current, allow_changes) or stop(given_up)


def _after_exception(
    diagnosis: Diagnosis,
    tried: Sequence[Tried],
    has_progress: bool,
    ladder: Ladder,
    allow_changes: bool,
    again: Callable[[Reason], Decision],
    stop: Callable[..., Decision],
) -> Decision:
    """What follows an exception that no hazard knows."""
    last, before = tried[-1], tried[:-1]
    if not last.error and any((one.error, one.exit_code) == ("", last.exit_code) for one in before):
        return stop(Reason(kind="same_exit_code"), last.exit_code)
    if any(one.error and (one.error, one.place) == (last.error, last.place) for one in before):
        return stop(Reason(kind="same_error", place=last.place))
    if last.error.partition(":")[0].rpartition(".")[2] in _CERTAIN_BUGS:
        return stop(Reason(kind="certain_bug"))
    if any(one.slug == "unknown" and one.error for one in before) and not has_progress:
        return stop(Reason(kind="unknown_error_again"))
    if has_progress:
        return again(Reason(kind="error_after_progress", step=last.step_reached))
    return _next_fallback(diagnosis, tried, ladder, _kept_changes(tried), allow_changes) or stop(
        Reason(kind="unknown_error")
    )


def _named_fallback(diagnosis: Diagnosis, tried: Sequence[Tried], ladder: Ladder, current: Changes) -> Decision | None:
    """The first remedy that really changes the settings; one that halves may be taken a few times in a row."""
    keeping = _keeping(diagnosis, ladder, tried[-1].phase)
    taken = Counter(one.fallback.title for one in tried if one.fallback)
    remedies = [fallback for fallback in keeping if taken[fallback.title] < _HALVINGS_AT_FIRST]
    remedies += [fallback for fallback in keeping if _HALVINGS_AT_FIRST <= taken[fallback.title] < _HALVINGS_IN_ALL]
    reason = Reason(kind="remedy", title=diagnosis.title)
    return _first_that_changes([(fallback, reason) for fallback in remedies], tried, ladder, current)


def _next_fallback(
    diagnosis: Diagnosis, tried: Sequence[Tried], ladder: Ladder, current: Changes, allow_changes: bool
) -> Decision | None:
    """The first remedy, else the first generic fallback, that really changes the settings."""
    if fallback := _named_fallback(diagnosis, tried, ladder, current):
        return fallback
    changing = [_of(remedy) for remedy in diagnosis.remedies if remedy.change and not remedy.keeps]
    hazard = find_hazard(diagnosis.slug)
    generic = _generic(hazard.kind if hazard else "", ladder)
    taken = {one.fallback.title for one in tried if one.fallback}
    offered = [(fallback, Reason(kind="next_fallback")) for fallback in generic if fallback.title not in taken]
    remedy_again = Reason(kind="remedy_again", title=diagnosis.title)
    offered += [(fallback, remedy_again) for fallback in _keeping(diagnosis, ladder, tried[-1].phase)]
    if allow_changes:
        offered += [(fallback, Reason(kind="changes_learning", title=diagnosis.title)) for fallback in changing]
    return _first_that_changes(offered, tried, ladder, current)


def _generic(kind: str, ladder: Ladder) -> tuple[Fallback, ...]:
    """The fallbacks that may help against a hazard of this kind."""
    if kind == "error":  # an error with a name is in the program or the data: no safer setting cures it
        return ()
    if kind == "wrong-results":  # how processes start and who loads the data changes no number
        return tuple(fallback for fallback in ladder.fallbacks if _ARITHMETIC & fallback.change.keys())
    return ladder.fallbacks


def _first_that_changes(
    offered: Iterable[tuple[Fallback, Reason]], tried: Sequence[Tried], ladder: Ladder, current: Changes
) -> Decision | None:
    """The first fallback that has an effect in this script and has not made things worse before."""
    refused = _refused(tried)
    ineffective = frozenset().union(*(one.ineffective for one in tried))
    for fallback, reason in offered:
        changes = ladder.apply(current, fallback.change)
        new = {name for name, value in changes.items() if current.get(name) != value}
        if new - ineffective and dict(fallback.change) not in refused:
            return Decision(action="fallback", reason=reason, fallback=fallback, changes=changes)
    return None


def _keeping(diagnosis: Diagnosis, ladder: Ladder, phase: str) -> list[Fallback]:
    """The remedies that may be applied without asking, those for this kind of run and this phase first."""
    own = ladder.remedies.get(diagnosis.slug, ())
    fallbacks = [*own, *(_of(remedy) for remedy in diagnosis.remedies if remedy.change and remedy.keeps)]
    evaluating = [fallback for fallback in fallbacks if set(fallback.change) == {"eval_micro_batch"}]
    others = [fallback for fallback in fallbacks if fallback not in evaluating]
    if phase == "evaluate":
        return [*evaluating, *others]
    return [*others, *evaluating] if not phase else others


def _kept_changes(tried: Sequence[Tried]) -> dict[str, object]:
    """The changes that stay: those of the last attempt, without what had no effect and what made things worse."""
    last = tried[-1]
    changes = dict(tried[-2].changes if _made_worse(tried) else last.changes)
    return {name: value for name, value in changes.items() if name not in last.ineffective}


def _made_worse(tried: Sequence[Tried]) -> bool:
    """True when a new fallback brought an error that the attempt before did not have, and no progress."""
    if len(tried) < 2 or tried[-1].fallback is None or not tried[-1].error:
        return False
    last, before = tried[-1], tried[-2]
    is_other_error = (last.error, last.place) != (before.error, before.place)
    return last.ending == "code" and is_other_error and last.step_reached <= before.step_reached and not before.error


def _refused(tried: Sequence[Tried]) -> list[dict[str, object]]:
    """The changes of fallbacks that made things worse."""
    ends = [tried[: at + 1] for at in range(1, len(tried))]
    return [dict(end[-1].fallback.change) for end in ends if end[-1].fallback and _made_worse(end)]


def _is_late_hang(last: Tried, ladder: Ladder) -> bool:
    return last.ending == "hang" and ladder.chance_seconds <= last.seconds < float("inf")


def _attempts_without_progress(tried: Sequence[Tried]) -> int:
    """How many attempts got no further than those before them; progress is never given up early."""
    best, count = 0, 0
    for one in tried:
        count += one.step_reached <= best
        best = max(best, one.step_reached)
    return count


def _killed_at_start(tried: Sequence[Tried]) -> int:
    """How many attempts in a row were killed externally within seconds, before training had begun."""
    count = 0
    for one in reversed(tried):
        is_early = one.seconds < _START_SECONDS and not one.step_reached and one.phase in ("", "start")
        if not (one.is_outside and is_early):
            break
        count += 1
    return count


def _killed_externally_in_a_row(tried: Sequence[Tried]) -> int:
    count = 0
    for one in reversed(tried):
        if not one.is_outside:
            break
        count += 1
    return count


def _is_unexplained_exit(diagnosis: Diagnosis, last: Tried) -> bool:
    """True when a program exited with its own code and without an error in its output, as after a wrong argument."""
    return diagnosis.slug == "unknown" and last.ending == "code" and not last.error and not last.step_reached


def _of(remedy: Remedy) -> Fallback:
    return Fallback(remedy.title, remedy.change or {}, remedy.cost, remedy.keeps)
