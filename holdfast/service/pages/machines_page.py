"""What the machines page shows: each worker, whether it is online, what it runs, and its checkup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from holdfast.core.text import human_bytes, plural
from holdfast.hazards import find_hazard
from holdfast.runs.wording import phase_text
from holdfast.service.jobs.models import Job, JobState, Worker

GONE_SECONDS = 60.0
_ORDER = {"blocker": 0, "warning": 1, "note": 2}
_LOOKS = {"blocker": "bad", "warning": "warn", "note": "idle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """A finding of the checkup."""

    slug: str
    severity: str
    look: str
    title: str
    seen: str
    why: str
    remedies: Sequence[Mapping[str, Any]]
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
    serious: Sequence[DoctorFinding]
    notes: Sequence[DoctorFinding]
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
    checkup = worker.checkup if isinstance(worker.checkup, dict) else {}
    findings = sorted(map(_found, checkup.get("findings") or ()), key=lambda one: _ORDER.get(one.severity, 3))
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
        about=_about(checkup.get("facts") or {}),
        jobs=[(job.pk, job.name, phase_text(job.phase) or "starting", job.step, job.steps) for job in shown],
        others=len(jobs) - len(shown),
        checked=worker.checked,
        verdict=", ".join(counts) or "no problems found",
        look="bad" if blockers else "warn" if warnings else "good",
        serious=[one for one in findings if one.severity != "note"],
        notes=[one for one in findings if one.severity == "note"],
        unanswered=[str(line) for line in checkup.get("unanswered") or ()],
        problem=str(checkup.get("error") or ""),
    )


def _found(said: Mapping[str, Any]) -> DoctorFinding:
    slug, severity = str(said.get("slug", "")), str(said.get("severity", "note"))
    return DoctorFinding(
        slug=slug,
        severity=severity,
        look=_LOOKS.get(severity, "idle"),
        title=str(said.get("title") or slug),
        seen=str(said.get("seen", "")),
        why=str(said.get("why", "")),
        remedies=said.get("remedies") or (),
        is_known=find_hazard(slug) is not None,
    )


def _about(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    torch = facts.get("torch") or {}
    gpus = ", ".join(str(gpu.get("name")) for gpu in facts.get("gpus") or () if isinstance(gpu, dict))
    memory = facts.get("memory_bytes")
    said = (
        ("System", str(facts.get("os_version") or facts.get("os") or "")),
        ("Processor", f"{facts['chip']}, {facts.get('cpu_count')} usable" if facts.get("chip") else ""),
        ("Memory", human_bytes(memory) if memory else ""),
        ("GPU", gpus or ("none" if facts else "")),
        ("Python", str(facts.get("python_version") or "")),
        ("torch", str(torch.get("version") or "")),
    )
    return [(name, value) for name, value in said if value]
