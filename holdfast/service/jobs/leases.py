"""Every change of a job's state, each a single conditional UPDATE: of two processes, the second changes nothing.

A claim is a new UUID with a lease of LEASE_SECONDS. The lease is set and compared by the database's clock alone, so the
clocks of workers do not matter. `agent.py` says when a holder renews, stops and kills; only a lease that has expired
completely is given to another worker. Every write of a holder names its claim: after a takeover it matches no row.
"""

import contextlib
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Count, F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce, Now

from holdfast.service.home import this_home
from holdfast.service.jobs.models import Dataset, Job, JobGoal, JobState, Shared, Worker
from holdfast.service.jobs.notices import file_notices
from holdfast.service.jobs.registry import register_model
from holdfast.service.outbox import forget

MOST_CLAIMS = 25  # after that many lost holders, the job itself is what kills them
ENDED = (JobState.PLANNED, JobState.FINISHED, JobState.FAILED, JobState.STOPPED)
_TRIES = 20  # to claim a job: each failure means that another worker claimed one

_IS_PLAN = Q(goal=JobGoal.PLAN)
_FREE: dict[str, Any] = {"claim": None, "worker": None, "lease_until": None}
_AT_REST: dict[str, Any] = {"phase": "", "eta_seconds": None}  # what an earlier holder copied no longer holds


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """The place of a waiting job."""

    ahead: int
    starts_in_seconds: float | None  # by the forecasts of the runs at work


def submit(
    *,
    owner: User,
    name: str,
    request: Mapping[str, object],
    dataset: Dataset | None = None,
    team: Group | None = None,
    goal: str = JobGoal.MODEL,
    device: str = "",
    priority: int = 0,
    parent: Job | None = None,
) -> Job:
    """Queue a job; the request was checked before and contains no paths."""
    with transaction.atomic():
        job = Job.objects.create(
            owner=owner,
            team=team,
            name=name,
            dataset=dataset,
            request=dict(request),
            goal=goal,
            device=device,
            priority=priority,
            parent=parent,
            task=str(request.get("task") or ""),
        )
        _announce(job.pk)
    return job


def start(job: Job) -> bool:
    """Queue the training of a planned job."""
    return _queue(job, (JobState.PLANNED,), goal=JobGoal.MODEL)


def resume(job: Job) -> bool:
    """Queue a stopped or failed job again; it continues from its newest checkpoint."""
    return _queue(job, (JobState.STOPPED, JobState.FAILED))


def ask_stop(job: Job) -> bool:
    """Stop a job: at once while it is queued, after saving while it runs."""
    if _change(Job.objects.filter(pk=job.pk, state=JobState.QUEUED), state=JobState.STOPPED, ended=Now(), **_FREE):
        return True
    return _change(Job.objects.filter(pk=job.pk, state=JobState.RUNNING), stop_asked=True)


def delete(job: Job) -> bool:
    """Delete a job that is not running, with its folder; its model must be deleted first."""
    with transaction.atomic():
        found = Job.objects.select_for_update().filter(pk=job.pk).exclude(state=JobState.RUNNING).first()
        if found is None:
            return False
        folder, agents = found.folder, this_home().agents
        transaction.on_commit(lambda: forget("runs", job.pk, job.created))
        found.delete()
        transaction.on_commit(lambda: _remove(folder, agents / f"{job.pk}.json", agents / f"{job.pk}.log"))
    return True


def claimable(worker: Worker) -> Shared:
    """The jobs that this worker may claim, the next one first.

    Within a priority, users take turns: the next job is of the user who has the fewest runs at the moment. A user with
    RUNS_PER_USER of them waits. Two workers that claim at the same moment may exceed that limit by one.
    """
    found = waiting_in_turn().filter(Q(device="") | Q(device__in=list(worker.devices)))
    if settings.RUNS_PER_USER:
        found = found.filter(Q(owner__is_superuser=True) | Q(owner_runs__lt=settings.RUNS_PER_USER) | _IS_PLAN)
    return found


def waiting_in_turn() -> Shared:
    """All waiting jobs, the next one first."""
    same_owner = Job.objects.filter(owner=OuterRef("owner"), state=JobState.RUNNING).exclude(goal=JobGoal.PLAN)
    counted = same_owner.order_by().values("owner").annotate(runs=Count("pk")).values("runs")
    rows: Shared = Job.objects.filter(state=JobState.QUEUED).annotate(owner_runs=Coalesce(Subquery(counted), 0))
    return rows.order_by("-priority", "owner_runs", "queued", "pk")


def free_goals(worker: Worker) -> list[str]:
    """The goals for which this worker has a free slot; plans have their own, so they never wait behind a training."""
    running = list(Job.objects.filter(state=JobState.RUNNING, worker=worker).values_list("goal", flat=True))
    plans = running.count(JobGoal.PLAN)
    slots = {JobGoal.MODEL: worker.slots - (len(running) - plans), JobGoal.PLAN: settings.PLANS_AT_ONCE - plans}
    return [goal for goal, free in slots.items() if free > 0 and worker.slots]


def claim_next(worker: Worker, waiting: Shared | None = None) -> tuple[int, uuid.UUID] | None:
    """Claim the next of all waiting jobs, or of these; its id and the claim."""
    for _ in range(_TRIES):
        job_id = (claimable(worker) if waiting is None else waiting.all()).values_list("pk", flat=True).first()
        if job_id is None:
            return None
        if taken := claim(job_id, worker):
            return job_id, taken
    return None


def claim(job_id: int, worker: Worker) -> uuid.UUID | None:
    """Claim one job, if it is still waiting for a worker like this."""
    fresh = uuid.uuid4()
    taken = _change(
        claimable(worker).order_by().filter(pk=job_id),
        state=JobState.RUNNING,
        claim=fresh,
        claims=F("claims") + 1,
        worker=worker,
        lease_until=_lease_end(),
        started=Coalesce("started", Now()),
        ended=None,
        sentence="",
        error={},
        **_AT_REST,
    )
    return fresh if taken else None


def renew(job_id: int, claimed: uuid.UUID, **copied: object) -> bool:
    """Renew the lease of our job, and copy what lists show; False when it is no longer ours."""
    return _change(_held(job_id, claimed), lease_until=_lease_end(), **copied)


def stop_asked(job_id: int, claimed: uuid.UUID) -> bool | None:
    """Whether a user has requested that our job stops; None when it is no longer ours."""
    found: bool | None = _held(job_id, claimed).values_list("stop_asked", flat=True).first()
    return found


def release(job_id: int, claimed: uuid.UUID, state: str, **fields: object) -> bool:
    """Write how our job ended; False, and nothing is written, when it is no longer ours."""
    return _change(_held(job_id, claimed), **{**fields, **_FREE, "state": state, "ended": Now(), "eta_seconds": None})


def end_job(job_id: int, claimed: uuid.UUID, state: str, run: Path, fields: Mapping[str, object]) -> bool:
    """Write the end of our job, its model and its notices, all or nothing; False when it is no longer ours."""
    with transaction.atomic():
        if not release(job_id, claimed, state, **fields):
            return False
        job: Job = Job.objects.get(pk=job_id)
        if state == JobState.FINISHED:
            register_model(job, run)
        if state in (JobState.FINISHED, JobState.FAILED):
            file_notices(job, state)
    return True


def hand_back(job_id: int, claimed: uuid.UUID) -> bool:
    """Put our unfinished job back into the queue."""
    with transaction.atomic():
        done = _change(_held(job_id, claimed), state=JobState.QUEUED, claims=F("claims") - 1, **_AT_REST, **_FREE)
        if done:
            _announce(job_id)
    return done


def lose(job_id: int, claimed: uuid.UUID | None, *, only_late: bool = False) -> bool:
    """Requeue a job whose holder is dead for certain, or late; after too many losses it fails."""
    one = _held(job_id, claimed)
    if only_late:  # the holder may have renewed since the query
        one = one.filter(lease_until__lt=Now())
    words = f"Lost its worker {MOST_CLAIMS} times; the run itself may be what ends it."
    failed = {"state": JobState.FAILED, "ended": Now(), "sentence": words}
    with transaction.atomic():
        if _change(one.filter(claims__gte=MOST_CLAIMS), **failed, eta_seconds=None, **_FREE):
            file_notices(Job.objects.get(pk=job_id), JobState.FAILED)
            return False
        done = _change(one, state=JobState.QUEUED, **_AT_REST, **_FREE)
        if done:
            _announce(job_id)
    return done


def requeue_lost() -> list[int]:
    """Requeue the jobs whose lease has expired; return their ids."""
    lost = Job.objects.filter(state=JobState.RUNNING, lease_until__lt=Now()).values_list("pk", "claim")
    return [job_id for job_id, claimed in lost if lose(job_id, claimed, only_late=True)]


def stop_overdue() -> int:
    """Ask runs that have trained longer than RUN_HOURS to save and stop; return how many."""
    if not settings.RUN_HOURS:
        return 0
    late = Job.objects.filter(state=JobState.RUNNING, stop_asked=False, owner__is_superuser=False)
    return late.filter(started__lt=Now() - timedelta(hours=settings.RUN_HOURS)).update(stop_asked=True)


def place_in_queue(job: Job) -> QueuePlace | None:
    """How many jobs start before this one, and when it may start; None when it does not wait."""
    order = list(waiting_in_turn().values_list("pk", flat=True))
    if job.pk not in order:
        return None
    ahead = order.index(job.pk)
    left = Job.objects.filter(state=JobState.RUNNING).values_list("eta_seconds", flat=True)
    known = sorted(seconds for seconds in left if seconds is not None)
    # Beyond the next free slot nothing is known: waiting jobs have no forecast yet.
    return QueuePlace(ahead=ahead, starts_in_seconds=known[ahead] if ahead < len(known) else None)


def running_on(worker: Worker) -> list[tuple[int, uuid.UUID]]:
    """The jobs that this worker holds, also from before a restart."""
    found = Job.objects.filter(state=JobState.RUNNING, worker=worker).order_by("pk")
    return [(job_id, claimed) for job_id, claimed in found.values_list("pk", "claim") if claimed]


def _queue(job: Job, states: tuple[str, ...], **fields: object) -> bool:
    times = {"queued": Now(), "started": None, "ended": None}  # the time a user took to decide is not the run's time
    fresh: dict[str, Any] = {**times, "stop_asked": False, "claims": 0, "sentence": "", "error": {}}
    with transaction.atomic():
        one = Job.objects.filter(pk=job.pk, state__in=states)
        done = _change(one, state=JobState.QUEUED, **fresh, **_AT_REST, **fields)
        if done:
            _announce(job.pk)
    return done


def _held(job_id: int, claimed: uuid.UUID | None) -> Shared:
    return Job.objects.filter(pk=job_id, state=JobState.RUNNING, claim=claimed)


def _change(rows: Shared, **fields: Any) -> bool:
    return rows.update(**fields) == 1


def _lease_end() -> Any:
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)


def _remove(folder: Path, *files: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _announce(job_id: int) -> None:
    """Send the workers a hint once the row is committed; without a broker the row alone is enough."""
    if settings.BROKER_URL:
        from holdfast.service.broker import announce

        device = Job.objects.values_list("device", flat=True).get(pk=job_id)
        transaction.on_commit(lambda: announce(job_id, device))
