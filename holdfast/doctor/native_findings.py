"""Says what is wrong among a folder's native libraries, each finding with its honest fixes.

Two orders of the same two packages are one finding where they lead to the same thing. Words are careful: a pair of
OpenMP copies "may crash", since no order of imports fails in every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.facts import NativeConflict
from holdfast.core.plan import Remedy
from holdfast.doctor.checkup import Finding
from holdfast.doctor.native_advice import missing_remedies, openmp_remedies, protobuf_remedies
from holdfast.machine.native.survey import Missing, NativeReport

VERDICTS = {
    "shared": "shared",
    "coexists": "coexist",
    "tolerated": "tolerated",
    "crash": "may crash",
    "hang": "may hang",
    "abort": "may abort",
    "not-found": "does not load",
}


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two distributions, and every order and case that leads to the same thing."""

    pairs: tuple[NativeConflict, ...]
    either_order: bool

    @property
    def main(self) -> NativeConflict:
        """One of them, which speaks for all."""
        return self.pairs[0]


def native_findings(report: NativeReport) -> tuple[Finding, ...]:
    """What is wrong in the folder, each with its fixes, in the form of all findings of `doctor`."""
    findings = []
    for group in pairings(report.conflicts):
        pair = group.main
        if pair.outcome == "crash":
            findings.append(
                Finding(
                    slug="openmp-duplicate",
                    severity="warning",
                    title="two OpenMP runtimes would be loaded into one process",
                    seen=f"{order_text(group)}: {copies_text(pair)} of an OpenMP runtime, may crash{case_text(pair)}",
                    why=pair.because,
                    remedies=openmp_remedies(report.os, pair, report.conflicts, report.carried, report.environment),
                )
            )
        elif pair.runtime == "protobuf":
            findings.append(
                Finding(
                    slug="abseil-mutex",
                    severity="warning",
                    title="two generations of protobuf would share one lock",
                    seen="; ".join(
                        f"{one.first} then {one.second} {VERDICTS[one.outcome]}: {one.because}" for one in group.pairs
                    ),
                    remedies=protobuf_remedies(pair),
                )
            )
    for missing in report.missing:
        if not missing.is_spare:
            findings.append(
                Finding(
                    slug="native-lib-missing",
                    severity="note" if missing.when else "warning",
                    title="a library that a package asks for is not there",
                    seen=missing_text(missing),
                    remedies=_remedies_for_missing(report, missing),
                )
            )
    return tuple(findings)


def pairings(conflicts: Sequence[NativeConflict]) -> tuple[Pairing, ...]:
    """Put together what both orders of two distributions lead to, where that is the same thing."""
    groups: dict[tuple[object, ...], list[NativeConflict]] = {}
    for pair in conflicts:
        # Both orders of a protobuf clash are one thing: the order only picks the symptom.
        what = "clash" if pair.runtime == "protobuf" else pair.outcome
        key = (pair.runtime, frozenset((pair.first, pair.second)), what, pair.copies, pair.when)
        groups.setdefault(key, []).append(pair)
    return tuple(Pairing(tuple(group), either_order=len(group) > 1) for group in groups.values())


def order_text(group: Pairing) -> str:
    """Write who is imported in which order."""
    pair = group.main
    if pair.first == pair.second:
        return f"{pair.first} by itself"
    return f"{pair.first} and {pair.second}, either order" if group.either_order else f"{pair.first} then {pair.second}"


def copies_text(pair: NativeConflict) -> str:
    """Write how many copies get loaded."""
    return "1 copy" if pair.copies == 1 else f"{pair.copies} copies"


def case_text(one: NativeConflict | Missing) -> str:
    """Write the condition, where there is one."""
    return f" (if {one.when})" if one.when else ""


def missing_text(missing: Missing) -> str:
    """Write which runtime a distribution does not find."""
    where = f", looked for in {', '.join(missing.looks_in)}" if missing.looks_in else ""
    alone = f"unless {' or '.join(missing.helped_by)} is imported first" if missing.helped_by else "on its own"
    return f"{missing.owner} finds no {missing.reference} {alone}{where}{case_text(missing)}"


def _remedies_for_missing(report: NativeReport, missing: Missing) -> tuple[Remedy, ...]:
    clashing = [
        other
        for pair in report.conflicts
        if pair.outcome == "crash" and missing.owner in (pair.first, pair.second)
        for other in (pair.first, pair.second)
        if other != missing.owner
    ]
    if report.os == "macos" and not missing.when:  # Homebrew's copy is known to be absent; say what it would bring
        clashing += [copy.owner for copy in report.carried if copy.merges and copy.used]
    return missing_remedies(report.os, missing.owner, missing.helped_by, tuple(dict.fromkeys(clashing)))
