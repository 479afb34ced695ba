"""Runs a checkup: asks this machine or a folder of packages, then every hazard, and names failed device tests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.core.facts import DeviceTrial, MachineFacts
from holdfast.doctor.checkup import Checkup, check
from holdfast.doctor.native_findings import native_findings
from holdfast.doctor.sections import FOLDER_SECTIONS, SECTIONS, Section
from holdfast.hazards import Hazard, find_hazard
from holdfast.machine.probe import ask_this_machine, facts_of_folder

_MPS_FAILURES = {"crash": "mps-crash", "hang": "mps-hang", "differs": "mps-wrong-results"}


def check_machine(
    device_limit_seconds: float,
    *,
    on_section: Callable[[Section, MachineFacts], None] = lambda section, facts: None,
    on_wait: Callable[[list[str], float], None] = lambda waiting, seconds: None,
) -> Checkup:
    """Ask this machine everything, then ask every hazard. Parts are handed over as soon as they are known."""
    asking = ask_this_machine(device_limit_seconds)
    try:
        for section in SECTIONS:
            asking.wait_for(section.probes, on_wait)
            on_section(section, asking.facts())
        facts = asking.all_facts(on_wait)
        report = asking.extras.get("report")
        checkup = check(facts, native=native_findings(report) if report else (), name_failure=name_failure)
        return replace(checkup, native=report)
    finally:
        asking.close()


def check_folder(
    folder: Path, *, on_section: Callable[[Section, MachineFacts], None] = lambda section, facts: None
) -> Checkup:
    """Ask a folder of installed packages, also of another system, then every hazard."""
    facts, report = facts_of_folder(folder)
    for section in FOLDER_SECTIONS:
        on_section(section, facts)
    return replace(check(facts, native=native_findings(report)), native=report)


def name_failure(trial: DeviceTrial) -> Hazard | None:
    """The hazard behind a failed trial, from the child's error and signal; None if it is not established."""
    from holdfast.hazards.diagnose import diagnose
    from holdfast.logs.log_text import read_evidence  # slow to import, and mostly not needed

    diagnosis = diagnose(read_evidence(trial.error, "hang" if trial.outcome == "hang" else trial.signal))
    if diagnosis.confidence == "proven":
        return find_hazard(diagnosis.slug)
    return find_hazard(_MPS_FAILURES.get(trial.outcome, "")) if trial.device.startswith("mps") else None
