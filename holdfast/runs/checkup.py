"""The doctor's front door: ask a machine or a folder, then every hazard; and the reversible link fix."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.facts import DeviceTrial, MachineFacts
from holdfast.doctor.checkup import Checkup, check
from holdfast.doctor.native_findings import native_findings
from holdfast.doctor.parts import FOLDER_PARTS, PARTS, Part
from holdfast.doctor.render import Style, render_close, render_findings, render_json, render_part
from holdfast.hazards import Hazard, find_hazard
from holdfast.machine.folder import facts_of_folder
from holdfast.machine.probe import ask_this_machine

__all__ = (
    "Checkup",
    "LinkChange",
    "Part",
    "Style",
    "check_folder",
    "check_machine",
    "links_to_make",
    "links_to_undo",
    "render_close",
    "render_findings",
    "render_json",
    "render_part",
)

_MPS_FAILURES = {"crash": "mps-crash", "hang": "mps-hang", "differs": "mps-wrong-results"}


def check_machine(
    device_limit_seconds: float,
    *,
    on_part: Callable[[Part, MachineFacts], None] = lambda part, facts: None,
    on_wait: Callable[[list[str], float], None] = lambda waiting, seconds: None,
) -> Checkup:
    """Ask this machine everything, then ask every hazard. Parts are handed over as soon as they are known."""
    asking = ask_this_machine(device_limit_seconds)
    try:
        for part in PARTS:
            asking.wait_for(part.probes, on_wait)
            on_part(part, asking.facts())
        facts = asking.all_facts(on_wait)
        report = asking.extras.get("report")
        checkup = check(facts, native=native_findings(report) if report else (), name_failure=name_failure)
        return replace(checkup, native=report)
    finally:
        asking.close()


def check_folder(folder: Path, *, on_part: Callable[[Part, MachineFacts], None] = lambda part, facts: None) -> Checkup:
    """Ask a folder of installed packages, also of another system, then every hazard."""
    facts, report = facts_of_folder(folder)
    for part in FOLDER_PARTS:
        on_part(part, facts)
    return replace(check(facts, native=native_findings(report)), native=report)


def name_failure(trial: DeviceTrial) -> Hazard | None:
    """Name the hazard behind a trial that went wrong, from what the child said; None when it is not established."""
    from holdfast.logs.log_text import read_evidence  # slow to import, and mostly not needed
    from holdfast.supervisor.diagnose import diagnose

    exit_status = "hang" if trial.outcome == "hang" else trial.detail.split()[0] if trial.outcome == "crash" else ""
    diagnosis = diagnose(read_evidence(trial.detail, exit_status))
    if diagnosis.confidence == "proven":
        return find_hazard(diagnosis.slug)
    return find_hazard(_MPS_FAILURES.get(trial.outcome, "")) if trial.device.startswith("mps") else None


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A change to an environment's links: the plan, how it reads, and the doing of it."""

    plan: object
    text: str
    has_work: bool
    apply: Callable[[], tuple[str, ...]]


def links_to_make(folder: Path) -> LinkChange:
    """Plan the links that leave one OpenMP copy in an environment; change nothing yet."""
    from holdfast.doctor.link_fix import apply_fix, plan_fix, render_fix

    plan = plan_fix(folder)
    return LinkChange(plan, render_fix(plan), bool(plan.actions), lambda: apply_fix(plan))


def links_to_undo(folder: Path) -> LinkChange:
    """Plan the way back; change nothing yet."""
    from holdfast.doctor.link_fix import apply_unfix, plan_unfix, render_unfix

    plan = plan_unfix(folder)
    return LinkChange(plan, render_unfix(plan), bool(plan.steps), lambda: apply_unfix(plan))
