"""What the machines page shows: each worker, whether it is online, what it runs, and its checkup."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from holdfast.core.facts import MachineFacts
from holdfast.core.text import human_bytes, plural
from holdfast.hazards import find_hazard
from holdfast.runs.observation_wording import phase_text
from holdfast.service.jobs.models import Job, JobState, Worker
from holdfast.service.jobs.workers import WorkerFinding, read_checkup

GONE_SECONDS = 60.0
_ORDER = {"blocker": 0, "warning": 1, "note": 2}
_LOOKS = {"blocker": "bad", "warning": "warn", "note": "idle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFinding:
    """A finding with how it looks."""

    finding: WorkerFinding
    look: str
    is_known: bool  # it has a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One worker."""

    pk: int
    name: str
    is_alive: bool
    beat: datetime
    started: datetime
    slots: int
    busy: int
    devices: str
    version: str
    about: Sequence[tuple[str, str]]
    jobs: Sequence[tuple[int, str, str, int, int]]  # pk, name, what it does, step, steps
    others: int  # jobs that this user may not see
    checked: datetime | None
    verdict: str
    look: str
    serious: Sequence[ShownFinding]
    notes: Sequence[ShownFinding]
    unanswered: Sequence[str]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesPage:
    """All workers, those online first, and the length of the queue."""

    machines: Sequence[Machine]
    queued: int
    slots: int
    busy: int


def read_machines(user: User) -> MachinesPage:
    """Every worker; jobs by name only if this user may see them."""
    running = Job.objects.filter(state=JobState.RUNNING).only("pk", "name", "phase", "step", "steps", "worker_id")
    visible = set(Job.objects.visible_to(user).filter(state=JobState.RUNNING).values_list("pk", flat=True))
    jobs: dict[int | None, list[Job]] = {}
    for job in running:
        jobs.setdefault(job.worker_id, []).append(job)
    since = timezone.now() - timedelta(seconds=GONE_SECONDS)
    found = [_machine(worker, jobs.get(worker.pk, []), visible, since) for worker in Worker.objects.order_by("name")]
    found.sort(key=lambda machine: not machine.is_alive)
    alive = [machine for machine in found if machine.is_alive]
    return MachinesPage(
        machines=found,
        queued=Job.objects.filter(state=JobState.QUEUED).count(),
        slots=sum(machine.slots for machine in alive),
        busy=sum(machine.busy for machine in alive),
    )


def _machine(worker: Worker, jobs: Sequence[Job], visible: set[int], since: datetime) -> Machine:
    checkup = read_checkup(worker)
    findings = sorted(checkup.findings, key=lambda one: _ORDER.get(one.severity, 3))
    blockers = sum(one.severity == "blocker" for one in findings)
    warnings = sum(one.severity == "warning" for one in findings)
    counts = [plural(count, word) for count, word in ((blockers, "blocker"), (warnings, "warning")) if count]
    shown = [job for job in jobs if job.pk in visible]
    return Machine(
        pk=worker.pk,
        name=worker.name,
        is_alive=worker.beat >= since,
        beat=worker.beat,
        started=worker.started,
        slots=worker.slots,
        busy=len(jobs),
        devices=", ".join(map(str, worker.devices)) or "unknown",
        version=worker.version,
        about=_about(checkup.facts),
        jobs=[(job.pk, job.name, phase_text(job.phase) or "starting", job.step, job.steps) for job in shown],
        others=len(jobs) - len(shown),
        checked=worker.checked,
        verdict=", ".join(counts) or "no problems found",
        look="bad" if blockers else "warn" if warnings else "good",
        serious=[_shown(one) for one in findings if one.severity != "note"],
        notes=[_shown(one) for one in findings if one.severity == "note"],
        unanswered=checkup.unanswered,
        problem=checkup.error,
    )


def _shown(finding: WorkerFinding) -> ShownFinding:
    look, is_known = _LOOKS.get(finding.severity, "idle"), find_hazard(finding.slug) is not None
    return ShownFinding(finding=finding, look=look, is_known=is_known)


def _about(facts: MachineFacts) -> list[tuple[str, str]]:
    known = (
        ("System", facts.os_version or facts.os),
        ("Processor", f"{facts.chip}, {facts.cpu_count} usable" if facts.chip else ""),
        ("Memory", human_bytes(facts.memory_bytes) if facts.memory_bytes else ""),
        ("GPU", ", ".join(gpu.name for gpu in facts.gpus) or ("none" if facts.os else "")),
        ("Python", facts.python_version),
        ("torch", facts.torch.version if facts.torch else ""),
    )
    return [(name, value) for name, value in known if value]
