"""Turns facts into findings: asks every hazard whether this machine invites it, and adds what the facts show.

A hazard whose check fails is itself a finding and does not stop the others. Nothing here touches the machine.
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
    "differs": "gives different results than the CPU",
    "error": "fails",
    "crash": "crashes the process",
    "hang": "hangs",
}
_ON_CPU = Remedy("train on the CPU for now", change={"device": "cpu"}, cost="slower")
_FRESH_TORCH = Remedy(
    "install torch in a new environment",
    command="python -m venv fresh && fresh/bin/pip install torch",
)
_MORE_TIME = Remedy("allow more time, in case the device is only slow", command="holdfast doctor --device-timeout 300")
# Hazards that report all clashing pairs together; the native report has one finding for each pair.
_REPORTED_IN_PAIRS = ("openmp-duplicate", "abseil-mutex")
# Findings without a hazard. `holdfast explain SLUG` prints these texts.
OWN_FINDINGS = {
    "device-trial": (
        "A device cannot train. `holdfast doctor` runs one small training step on each device, in a separate process, "
        "and compares the loss, the gradients and the updated weights with double precision on the CPU. Here the step "
        "failed, crashed, hung or gave different numbers, and no known hazard explains why. The finding says how far "
        "the step got; a run on this device would most likely end the same way."
    ),
    "environment-variable": (
        "An environment variable is set that does harm, or has no effect. The finding says what it really does, and "
        "`holdfast doctor -v` names the source. `unset NAME` removes it for now; also check where it is set, mostly in "
        "a shell profile, the first cell of a notebook or a job script."
    ),
    "other-environment": (
        "The active virtual environment is not the one that `holdfast` is installed in, so your script would import "
        "other packages than those described. `holdfast doctor --env FOLDER` checks the active environment."
    ),
    "check-failed": (
        "One of Holdfast's checks failed. This is a bug in Holdfast and says nothing about this machine; all other "
        "checks were made. Please report the bug with the name of the check and the error in the finding."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about this machine that may harm a run."""

    slug: str
    severity: Severity
    seen: str
    remedies: tuple[Remedy, ...] = ()
    title: str = ""
    why: str = ""  # the mechanism, if known
    sources: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # environment variables that it is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The facts about a machine and the findings that follow."""

    facts: MachineFacts
    findings: tuple[Finding, ...] = ()
    unanswered: tuple[str, ...] = ()
    native: NativeReport | None = None  # native libraries, listed by `-v`

    @property
    def exit_code(self) -> int:
        """3, "this machine cannot", with a blocker; otherwise 0."""
        return 3 if any(finding.severity == "blocker" for finding in self.findings) else 0

    def count(self, severity: Severity) -> int:
        """How many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)


def check(
    facts: MachineFacts,
    plan: Plan | None = None,
    *,
    native: Sequence[Finding] = (),
    hazards: tuple[Hazard, ...] | None = None,
    name_failure: Callable[[DeviceTrial], Hazard | None] = lambda trial: None,
) -> Checkup:
    """Ask every hazard about these facts and a plan; without one, about what most scripts do."""
    hazards = all_hazards() if hazards is None else hazards
    findings = list(_invited(facts, plan or Plan(), hazards))
    findings = _replace_summaries(findings, native)
    for trial in facts.trials:
        if trial.outcome != "agrees":
            _add_trial(findings, trial, name_failure(trial))
    known = {name for finding in findings for name in finding.variables}
    findings += [finding for finding in _variable_findings(facts) if not known.intersection(finding.variables)]
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
                seen=f"the check for {hazard.slug} failed: {type(error).__name__}: {error}",
                title="one of Holdfast's checks failed; this is a bug in Holdfast",
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
                variables=invited.variables,
            )


def _replace_summaries(findings: list[Finding], native: Sequence[Finding]) -> list[Finding]:
    """Replace a hazard's summary by one finding per pair of packages, with the severity of the summary."""
    replaced = {finding.slug for finding in native}.intersection(_REPORTED_IN_PAIRS)
    summaries = {finding.slug: finding for finding in findings if finding.slug in replaced}
    exact = [
        replace(finding, severity=summaries[finding.slug].severity, sources=summaries[finding.slug].sources)
        if finding.slug in summaries
        else finding
        for finding in native
    ]
    return [finding for finding in findings if finding.slug not in replaced] + exact


def _add_trial(findings: list[Finding], trial: DeviceTrial, hazard: Hazard | None) -> None:
    """Add a failed trial: to the finding of its cause, if there is one, or as a finding."""
    seen = f"a test step on {trial.device} {_TRIED[trial.outcome]}: {trial.detail}"
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
            title=hazard.title if hazard else "a device cannot train",
            sources=hazard.sources if hazard else (),
        )
    )


def _variable_findings(facts: MachineFacts) -> Iterator[Finding]:
    """Findings about variables that do harm or have no effect."""
    for variable in facts.variables:
        if variable.verdict == "works":
            continue
        other_environment = variable.name == "VIRTUAL_ENV"
        remedy = (
            Remedy("check the packages of that environment", command=f"holdfast doctor --env {quote(variable.value)}")
            if other_environment
            else Remedy("remove it", command=f"unset {variable.name}")
        )
        yield Finding(
            slug="other-environment" if other_environment else "environment-variable",
            severity="warning" if variable.verdict == "harmful" else "note",
            seen=f"{variable.name}={variable.value} {variable.effect}",
            remedies=(remedy,),
            title=variable.name,
            sources=(variable.source,),
            variables=(variable.name,),
        )
