"""One file per known failure; the folder is the registry.

A hazard is what we know of one way a run dies, hangs or lies. Before the run `doctor` asks it whether this machine
invites it, after a failure `supervisor.diagnose` asks whether it was the cause, the ladder takes its remedies, and
`holdfast explain` and the docs print its text. CONTRIBUTING.md shows how to add one.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Literal

from holdfast.core.evidence import Evidence, Passage, Source
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy

Strength = Literal["proves", "suggests", "fallout"]
Severity = Literal["blocker", "warning", "note"]
Kind = Literal["error", "crash", "hang", "slow", "wrong-results"]


@dataclass(frozen=True, slots=True)
class Clue:
    """A pattern to look for in one source of the evidence."""

    source: Source
    pattern: str

    def find(self, evidence: Evidence) -> Passage | None:
        """Give the first line that shows it; from the log rather the error itself than a source line that quotes it."""
        found = evidence.texts(self.source).first(self.pattern)
        if found and self.source == "log":
            return evidence.errors.first(self.pattern) or found
        return found


@dataclass(frozen=True, slots=True)
class Sign:
    """What a hazard leaves behind, and how much it means."""

    strength: Strength
    find: Callable[[Evidence], Passage | None]


def seen(source: Source, pattern: str) -> Clue:
    """Look for a pattern beside a sign's own, in `also` or `unless`."""
    return Clue(source, pattern)


def proves(source: Source, pattern: str, *, also: tuple[Clue, ...] = (), unless: tuple[Clue, ...] = ()) -> Sign:
    """Nothing else looks like this."""
    return _sign("proves", Clue(source, pattern), also, unless)


def suggests(source: Source, pattern: str, *, also: tuple[Clue, ...] = (), unless: tuple[Clue, ...] = ()) -> Sign:
    """It points here, though other causes are possible."""
    return _sign("suggests", Clue(source, pattern), also, unless)


def fallout(source: Source, pattern: str, *, also: tuple[Clue, ...] = (), unless: tuple[Clue, ...] = ()) -> Sign:
    """Usually the echo of an earlier failure, so it never wins over another sign."""
    return _sign("fallout", Clue(source, pattern), also, unless)


def judged(strength: Strength, find: Callable[[Evidence], Passage | None]) -> Sign:
    """A sign that needs arithmetic or structure, such as two load addresses, rather than a pattern."""
    return Sign(strength, find)


def _sign(strength: Strength, clue: Clue, also: tuple[Clue, ...], unless: tuple[Clue, ...]) -> Sign:
    def find(evidence: Evidence) -> Passage | None:
        found = clue.find(evidence)
        if found is None or any(other.find(evidence) for other in unless):
            return None
        return found if all(other.find(evidence) for other in also) else None

    return Sign(strength, find)


@dataclass(frozen=True, slots=True)
class Invited:
    """Why this machine and plan invite a hazard, and how bad that is."""

    seen: str
    severity: Severity = "warning"
    remedies: tuple[Remedy, ...] = ()  # when empty, the hazard's own


def _never(facts: MachineFacts, plan: Plan) -> Invited | None:
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """A log with how its process ended and what was seen of it live, where the text alone says too little."""

    log: str
    exit: str = ""
    samples: tuple[str, ...] = ()  # lines of `supervisor.collect`

    @property
    def shown(self) -> str:
        """What the hazard's page shows of it."""
        return "\n".join(filter(None, [self.log, *self.samples]))


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
    over: tuple[str, ...] = ()  # hazards of which this is the more exact name when both show
    is_last_resort: bool = False  # it says only how the process ended: any other name is the more exact one
    reproduced_by: str = ""
    story: str = ""  # the module's docstring; filled by all_hazards

    @property
    def why(self) -> str:
        """The story's explanation alone."""
        explanation = self.story.partition("Why:")[2].partition("What we do:")[0]
        return " ".join(explanation.split())

    def page(self) -> dict[str, object]:
        """All that is known of it, as plain values."""
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
    """Every hazard of this folder, by slug."""
    found: list[Hazard] = []
    for module_info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{module_info.name}")
        if hasattr(module, "HAZARD"):
            found.append(replace(module.HAZARD, story=(module.__doc__ or "").strip()))
    return tuple(sorted(found, key=lambda hazard: hazard.slug))


def find_hazard(slug: str) -> Hazard | None:
    """The hazard of that name, if there is one."""
    return next((hazard for hazard in all_hazards() if hazard.slug == slug), None)
