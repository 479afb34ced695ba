"""One file per known failure; the folder is the registry.

A hazard describes one way a run can die, hang or give wrong results. Before the run, `doctor` asks each hazard whether
this machine and plan invite it. After a failure, diagnosis asks whether it was the cause, and the fallback ladder
applies its remedies. `holdfast explain` and the docs print its text. CONTRIBUTING.md shows how to add one.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Generic, Literal, Protocol, TypeVar

from holdfast.core.evidence import Evidence, Passage, Seen, Source
from holdfast.core.facts import MachineFacts
from holdfast.core.observations import ExitStatus, Observation, TreeVerdict, Verdict
from holdfast.core.plan import Plan, Remedy

Strength = Literal["proves", "suggests", "fallout"]
Severity = Literal["blocker", "warning", "note"]
Kind = Literal["error", "crash", "hang", "slow", "wrong-results"]
K = TypeVar("K", bound=Observation)
Clues = tuple["Clue", ...]


class Clue(Protocol):
    """Something to look for in the evidence."""

    def find(self, evidence: Evidence) -> Seen | None:
        """Return the first thing that matches."""


@dataclass(frozen=True, slots=True)
class TextClue:
    """A pattern to look for in one source of text that others wrote."""

    source: Source
    pattern: str

    def find(self, evidence: Evidence) -> Passage | None:
        """Return the first matching line; in a log, an error line wins over a source line that quotes it."""
        found = evidence.texts(self.source).first(self.pattern)
        if found and self.source == "log":
            return evidence.errors.first(self.pattern) or found
        return found


@dataclass(frozen=True, slots=True)
class ObservedClue(Generic[K]):
    """An observation of the supervisor to look for, by its type and its values."""

    kind: type[K]
    test: Callable[[K], bool]

    def find(self, evidence: Evidence) -> Seen | None:
        """Return the first observation of this type that passes the test."""
        return next((one for one in evidence.observed(self.kind) if self.test(one)), None)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Sign:
    """Evidence that a hazard leaves behind, and how strong it is."""

    strength: Strength
    find: Callable[[Evidence], Seen | None]


def seen(source: Source, pattern: str) -> TextClue:
    """An extra pattern for the `also` or `unless` of a sign."""
    return TextClue(source, pattern)


def observed(kind: type[K], test: Callable[[K], bool] = lambda _: True) -> ObservedClue[K]:
    """An observation of the supervisor whose values pass the test: a sign by itself, or for `also` and `unless`."""
    return ObservedClue(kind, test)


def has_verdict(*verdicts: Verdict) -> ObservedClue[TreeVerdict]:
    """The tree of processes was seen doing one of these."""
    return observed(TreeVerdict, lambda one: one.verdict in verdicts)


def ended_by(*signals: str) -> ObservedClue[ExitStatus]:
    """The process, or by its log a child of it, was ended by one of these signals; by any signal without names."""
    return observed(ExitStatus, lambda one: one.signal in signals if signals else bool(one.signal))


HUNG = observed(ExitStatus, lambda one: one.is_hang)


def proves(what: Source | Clue, pattern: str = "", *, also: Clues = (), unless: Clues = ()) -> Sign:
    """A sign that no other cause produces: a pattern in a source of text, or an observation."""
    return _sign("proves", what, pattern, also, unless)


def suggests(what: Source | Clue, pattern: str = "", *, also: Clues = (), unless: Clues = ()) -> Sign:
    """A sign that points here, although other causes are possible."""
    return _sign("suggests", what, pattern, also, unless)


def fallout(what: Source | Clue, pattern: str = "", *, also: Clues = (), unless: Clues = ()) -> Sign:
    """A sign that is usually a consequence of an earlier failure, so any other sign outranks it."""
    return _sign("fallout", what, pattern, also, unless)


def judged(strength: Strength, find: Callable[[Evidence], Seen | None]) -> Sign:
    """A sign that needs arithmetic or structure, such as two load addresses, rather than a pattern."""
    return Sign(strength, find)


def _sign(strength: Strength, what: Source | Clue, pattern: str, also: Clues, unless: Clues) -> Sign:
    clue = TextClue(what, pattern) if isinstance(what, str) else what

    def find(evidence: Evidence) -> Seen | None:
        found = clue.find(evidence)
        if found is None or any(other.find(evidence) for other in unless):
            return None
        return found if all(other.find(evidence) for other in also) else None

    return Sign(strength, find)


@dataclass(frozen=True, slots=True)
class Invited:
    """Why this machine and plan invite a hazard, and how severe it is."""

    seen: str
    severity: Severity = "warning"
    remedies: tuple[Remedy, ...] = ()  # when empty, the hazard's own
    variables: tuple[str, ...] = ()  # environment variables that it is about


def _never(facts: MachineFacts, plan: Plan) -> Invited | None:
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """A log plus the process exit and live observations, for cases where the log alone says too little."""

    log: str
    exit: str = ""  # "1", "SIGKILL" or "hang"
    observations: tuple[Observation, ...] = ()  # of the supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One known failure."""

    slug: str
    title: str
    kind: Kind
    signs: tuple[Sign, ...]
    remedies: tuple[Remedy, ...]
    sources: tuple[str, ...]
    matches: tuple[str | Case, ...]
    near_misses: tuple[str | Case, ...]
    invited_by: Callable[[MachineFacts, Plan], Invited | None] = _never
    over: tuple[str, ...] = ()  # less specific hazards that this one overrides
    is_last_resort: bool = False  # says only how the process ended, so any other hazard is more specific
    reproduced_by: str = ""
    story: str = ""  # the module's docstring; filled by all_hazards

    @property
    def why(self) -> str:
        """The "Why" part of the story."""
        explanation = self.story.partition("Why:")[2].partition("What we do:")[0]
        return " ".join(explanation.split())

    def page(self) -> dict[str, object]:
        """Everything known about the hazard, as plain values."""
        return {
            "slug": self.slug,
            "title": self.title,
            "kind": self.kind,
            "story": self.story,
            "remedies": self.remedies,
            "sources": self.sources,
            "reproduced_by": self.reproduced_by or None,
        }


@cache
def all_hazards() -> tuple[Hazard, ...]:
    """All hazards in this folder, sorted by slug."""
    found: list[Hazard] = []
    for module_info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{module_info.name}")
        if hasattr(module, "HAZARD"):
            found.append(replace(module.HAZARD, story=(module.__doc__ or "").strip()))
    return tuple(sorted(found, key=lambda hazard: hazard.slug))


def find_hazard(slug: str) -> Hazard | None:
    """The hazard with this slug, or None."""
    return next((hazard for hazard in all_hazards() if hazard.slug == slug), None)
