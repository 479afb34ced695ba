"""Facts and hazards become findings: worst first, and a check that breaks stops no other."""

import dataclasses

import pytest

from holdfast.core.facts import DeviceTrial, MachineFacts, Variable
from holdfast.core.plan import Plan, Remedy
from holdfast.doctor.checkup import OWN_FINDINGS, Finding, check
from holdfast.doctor.machine_checkup import name_failure
from holdfast.hazards import Hazard, Invited, all_hazards


def hazard(slug, invited_by, **changes):
    return Hazard(
        slug=slug,
        title=f"{slug} happened",
        kind="crash",
        signs=(),
        remedies=(Remedy("do otherwise", command="otherwise"),),
        sources=("somewhere#1",),
        matches=(),
        near_misses=(),
        invited_by=invited_by,
        **changes,
    )


def says(text, severity="warning", remedies=(), variables=()):
    return lambda facts, plan: Invited(text, severity, remedies, variables)


def broken(facts, plan):
    raise KeyError("torch")


def trial(device, outcome, detail="it did"):
    return DeviceTrial(device=device, outcome=outcome, detail=detail, seconds=1.0)


def slugs(checkup):
    return [finding.slug for finding in checkup.findings]


def test_findings_come_worst_first_with_remedies_and_sources():
    hazards = (
        hazard("a-note", says("n", "note")),
        hazard("b-warning", says("w")),
        hazard("c-block", says("b", "blocker")),
    )
    checkup = check(MachineFacts(), hazards=hazards)
    assert slugs(checkup) == ["c-block", "b-warning", "a-note"]
    assert checkup.exit_code == 3
    assert checkup.findings[1] == Finding(
        slug="b-warning",
        severity="warning",
        seen="w",
        remedies=(Remedy("do otherwise", command="otherwise"),),
        title="b-warning happened",
        sources=("somewhere#1",),
    )


def test_an_invitation_may_bring_its_own_remedies():
    own = (Remedy("this instead", command="this"),)
    assert check(MachineFacts(), hazards=(hazard("a-b", says("x", "note", own)),)).findings[0].remedies == own


def test_broken_check_is_a_note_and_others_still_run():
    checkup = check(MachineFacts(), hazards=(hazard("a-broken", broken), hazard("b-fine", says("w"))))
    assert slugs(checkup) == ["b-fine", "check-failed"]
    assert "a-broken" in checkup.findings[1].seen
    assert "KeyError: 'torch'" in checkup.findings[1].seen
    assert checkup.exit_code == 0


def test_warnings_leave_a_machine_healthy():
    assert check(MachineFacts(), hazards=(hazard("a-b", says("w")),)).exit_code == 0
    assert check(MachineFacts(), hazards=()).findings == ()


def test_matching_trial_is_not_a_finding():
    assert check(MachineFacts(trials=(trial("cpu", "agrees"),)), hazards=()).findings == ()


def test_failing_cpu_is_a_blocker_failing_gpu_a_warning():
    crashed = trial("cpu", "crash", "SIGILL during import torch")
    facts = MachineFacts(trials=(crashed, trial("mps", "differs", "loss 3")))
    cpu, mps = check(facts, hazards=()).findings
    assert (cpu.severity, cpu.slug) == ("blocker", "device-trial")
    assert cpu.seen.endswith(f": {crashed.detail}")
    assert (mps.severity, mps.remedies[0].change) == ("warning", {"device": "cpu"})


def test_a_hang_also_offers_more_time():
    (finding,) = check(MachineFacts(trials=(trial("cuda:0", "hang"),)), hazards=()).findings
    assert finding.remedies[0].command == "holdfast doctor --device-timeout 300"


def test_trial_crash_is_named_by_signal_and_error():
    aborted = DeviceTrial(
        device="cpu",
        outcome="crash",
        detail="",
        seconds=1.0,
        signal="SIGABRT",
        error="OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
    )
    assert name_failure(aborted).slug == "openmp-duplicate"
    assert name_failure(trial("mps", "differs")).slug == "mps-wrong-results"
    assert name_failure(trial("cpu", "differs")) is None


def test_trial_with_known_cause_joins_its_finding():
    known = hazard("cuda-driver", says("too old", "blocker"))
    facts = MachineFacts(trials=(trial("cuda", "error", "CUDA initialization failed"),))
    (finding,) = check(facts, hazards=(known,), name_failure=lambda trial: known).findings
    assert finding.severity == "blocker"
    assert finding.slug == "cuda-driver"
    assert finding.seen.startswith("too old; ")
    assert finding.seen.endswith(f": {facts.trials[0].detail}")


def test_harmful_variable_is_a_warning_useless_one_a_note():
    facts = MachineFacts(
        variables=(
            Variable(name="USELESS", value="1", effect="does nothing", verdict="useless"),
            Variable(name="BAD", value="1", effect="hides a check", source="a#1", verdict="harmful"),
            Variable(name="FINE", value="1", effect="works"),
        )
    )
    bad, useless = check(facts, hazards=()).findings
    assert (bad.severity, bad.seen, bad.remedies[0].command) == ("warning", "BAD=1 hides a check", "unset BAD")
    assert useless.severity == "note"


def test_variable_named_by_a_hazard_is_reported_once():
    facts = MachineFacts(variables=(Variable(name="BAD", value="1", effect="hides a check", verdict="harmful"),))
    assert slugs(check(facts, hazards=(hazard("a-b", says("set", variables=("BAD",))),))) == ["a-b"]


def test_package_pairs_replace_the_summary():
    summary = hazard("openmp-duplicate", says("two pairs", "blocker"))
    pairs = [Finding(slug="openmp-duplicate", severity="warning", seen=text) for text in ("one", "two")]
    checkup = check(MachineFacts(), hazards=(summary,), native=pairs)
    assert [(finding.seen, finding.severity) for finding in checkup.findings] == [
        ("one", "blocker"),
        ("two", "blocker"),
    ]


def test_missing_library_does_not_override_its_hazard():
    summary = hazard("native-lib-missing", says("torchvision, torch"))
    missing = Finding(slug="native-lib-missing", severity="warning", seen="xgboost finds no libomp")
    checkup = check(MachineFacts(), hazards=(summary,), native=[missing])
    assert [finding.seen for finding in checkup.findings] == [
        "torchvision, torch",
        missing.seen,
    ]


def test_every_finding_can_be_explained():
    facts = MachineFacts(
        trials=(trial("cpu", "crash"),),
        variables=(
            Variable(name="BAD", value="1", effect="hides a check", verdict="harmful"),
            Variable(name="VIRTUAL_ENV", value="/other", effect="is active", verdict="harmful"),
        ),
    )
    own = set(slugs(check(facts, hazards=(hazard("a-broken", broken),))))
    assert own == set(OWN_FINDINGS)
    assert not own & {known.slug for known in all_hazards()}


@pytest.mark.parametrize("known", all_hazards(), ids=lambda known: known.slug)
def test_no_hazard_breaks_over_facts_that_could_not_be_established(known):
    empty = MachineFacts()
    named = MachineFacts(os="macos", arch="arm64", distributions={"torch": "", "numpy": "", "transformers": "x"})
    for facts in (empty, named):
        for plan in (Plan(), Plan(device="cuda", precision="bf16", compile=True)):
            invited = known.invited_by(facts, plan)
            assert invited is None or dataclasses.is_dataclass(invited)
