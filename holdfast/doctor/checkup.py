"""Turns facts into findings: asks every hazard whether this machine invites it, and adds what the facts say themselves.

A hazard whose question breaks is itself a finding and stops no other. Nothing here touches the machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from holdfast.core.facts import DeviceTrial, MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Severity, all_hazards
from holdfast.machine.native.native_report import NativeReport

_ORDER: Mapping[Severity, int] = {"blocker": 0, "warning": 1, "note": 2}
_TRIED = {
    "differs": "gives other results than the CPU",
    "error": "fails",
    "crash": "crashes the process",
    "hang": "does not come back",
}
_ON_CPU = Remedy("train on the CPU meanwhile", change={"device": "cpu"}, cost="slower")
_FRESH_TORCH = Remedy(
    "install torch afresh, in an environment of its own",
    command="python -m venv fresh && fresh/bin/pip install torch",
)
_MORE_TIME = Remedy("give it more time, in case it is only slow", command="holdfast doctor --device-timeout 300")
# Hazards that tell all clashing pairs in one sentence; the native report has a finding for each.
_TOLD_IN_PAIRS = ("openmp-duplicate", "abseil-mutex")
# Findings without a hazard behind them: no run fails of them. `holdfast explain SLUG` prints these texts.
OWN_FINDINGS = {
    "device-trial": (
        "A device does not train. `holdfast doctor` does one small training step on each device, in a process of its "
        "own, and compares loss, gradients and the weights' move with double precision on the CPU. Here the step "
        "failed, crashed, hung or gave other numbers, and no known hazard explains it. The finding says how far the "
        "step came; a run on that device would most likely end the same way."
    ),
    "environment-variable": (
        "A variable is set that does harm, or nothing at all. The finding says what it really does, and `holdfast "
        "doctor -v` who established that. `unset NAME` takes it away; look also where it is set, mostly a shell "
        "profile, a notebook's first cell or a job script."
    ),
    "other-environment": (
        "Another virtual environment is active than the one that `holdfast` was installed in, so the packages "
        "described are not the ones your script would import. `holdfast doctor --env FOLDER` looks at the active one."
    ),
    "check-failed": (
        "A check of Holdfast's broke. That is a bug of ours and says nothing about this machine; all other checks "
        "were made. The finding names the check and the error, which is what a report of the bug needs."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about this machine that a run should know of."""

    slug: str
    severity: Severity
    seen: str
    remedies: tuple[Remedy, ...] = ()
    title: str = ""
    why: str = ""  # the mechanism, where it is known beyond what was seen
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What is true of a machine and what follows from it."""

    facts: MachineFacts
    findings: tuple[Finding, ...] = ()
    unanswered: tuple[str, ...] = ()
    native: NativeReport | None = None  # what `-v` lists of native libraries

    @property
    def exit_code(self) -> int:
        """3, "this machine cannot", when there is a blocker; otherwise 0."""
        return 3 if any(finding.severity == "blocker" for finding in self.findings) else 0

    def count(self, severity: Severity) -> int:
        """How many findings are that bad."""
        return sum(finding.severity == severity for finding in self.findings)


def check(
    facts: MachineFacts,
    plan: Plan | None = None,
    *,
    native: Sequence[Finding] = (),
    hazards: tuple[Hazard, ...] | None = None,
    name_failure: Callable[[DeviceTrial], Hazard | None] = lambda trial: None,
) -> Checkup:
    """Ask every hazard about these facts; without a plan, about what most scripts do."""
    hazards = all_hazards() if hazards is None else hazards
    findings = list(_invited(facts, plan or Plan(), hazards))
    findings = _sharpen(findings, native)
    for trial in facts.trials:
        if trial.outcome != "agrees":
            _add_trial(findings, trial, name_failure(trial))
    said = " ".join(finding.seen for finding in findings)
    findings += [finding for finding in _variable_findings(facts) if finding.title not in said]
    findings.sort(key=lambda finding: _ORDER[finding.severity])
    return Checkup(facts=facts, findings=tuple(findings), unanswered=facts.unanswered)


def _invited(facts: MachineFacts, plan: Plan, hazards: tuple[Hazard, ...]) -> Iterator[Finding]:
    for hazard in hazards:
        try:
            invited = hazard.invited_by(facts, plan)
        except Exception as error:
            yield Finding(
                slug="check-failed",
                severity="note",
                seen=f"the check for {hazard.slug} broke: {type(error).__name__}: {error}",
                title="a check of ours failed; this is a bug in Holdfast",
            )
            continue
        if invited:
            yield Finding(
                slug=hazard.slug,
                severity=invited.severity,
                seen=invited.seen,
                remedies=invited.remedies or hazard.remedies,
                title=hazard.title,
                sources=hazard.sources,
            )


def _sharpen(findings: list[Finding], native: Sequence[Finding]) -> list[Finding]:
    """Put one finding per pair of packages in the place of a hazard's summary, as severe as the hazard said."""
    replaced = {finding.slug for finding in native}.intersection(_TOLD_IN_PAIRS)
    summaries = {finding.slug: finding for finding in findings if finding.slug in replaced}
    exact = [
        replace(finding, severity=summaries[finding.slug].severity, sources=summaries[finding.slug].sources)
        if finding.slug in summaries
        else finding
        for finding in native
    ]
    return [finding for finding in findings if finding.slug not in replaced] + exact


def _add_trial(findings: list[Finding], trial: DeviceTrial, hazard: Hazard | None) -> None:
    """Add a trial that went wrong, to what is already known of its cause where that was found."""
    seen = f"one training step on {trial.device} {_TRIED[trial.outcome]}: {trial.detail}"
    for place, known in enumerate(findings):
        if hazard and known.slug == hazard.slug:
            findings[place] = replace(known, seen=f"{known.seen}; {seen}")
            return
    remedies = hazard.remedies if hazard else (_FRESH_TORCH if trial.device == "cpu" else _ON_CPU,)
    findings.append(
        Finding(
            slug=hazard.slug if hazard else "device-trial",
            severity="blocker" if trial.device == "cpu" else "warning",
            seen=seen,
            remedies=(_MORE_TIME, *remedies) if trial.outcome == "hang" else remedies,
            title=hazard.title if hazard else "a device does not train",
            sources=hazard.sources if hazard else (),
        )
    )


def _variable_findings(facts: MachineFacts) -> Iterator[Finding]:
    """Variables that do harm, or nothing. The title is the variable's name."""
    for variable in facts.variables:
        if variable.verdict == "works":
            continue
        other_environment = variable.name == "VIRTUAL_ENV"
        remedy = (
            Remedy("look at that environment's packages", command=f"holdfast doctor --env {quote(variable.value)}")
            if other_environment
            else Remedy("take it away", command=f"unset {variable.name}")
        )
        yield Finding(
            slug="other-environment" if other_environment else "environment-variable",
            severity="warning" if variable.verdict == "harmful" else "note",
            seen=f"{variable.name}={variable.value} {variable.effect}",
            remedies=(remedy,),
            title=variable.name,
            sources=(variable.source,),
        )
