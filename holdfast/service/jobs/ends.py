"""Writes the end of a job: its state, its model in the registry, and what its owner wants to hear, all or nothing."""

import uuid
from collections.abc import Mapping
from pathlib import Path

from django.db import transaction
from django.db.models import Max

from holdfast.core.artifacts import read_artifact
from holdfast.core.runfolder import PLAN, model_folder
from holdfast.service.jobs import leases
from holdfast.service.jobs.models import Job, TrainedModel
from holdfast.service.jobs.notices import file_notices


def write_end(job_id: int, claimed: uuid.UUID, state: str, run: Path, fields: Mapping[str, object]) -> bool:
    """Release a claim with how it ended; False, and nothing is written, when the claim is gone."""
    with transaction.atomic():
        if not leases.release(job_id, claimed, state, **fields):
            return False
        job: Job = Job.objects.get(pk=job_id)
        if state == Job.State.FINISHED:
            _register(job, run)
        if state in (Job.State.FINISHED, Job.State.FAILED):
            file_notices(job, state)
    return True


def _register(job: Job, run: Path) -> None:
    """Put the finished model into the registry, once for each job."""
    if TrainedModel.objects.filter(job=job).exists():
        return
    plan, folder = read_artifact(run / PLAN), model_folder(run)
    # Locks the owner's row: two jobs of one name that end together get two numbers.
    type(job.owner).objects.select_for_update().get(pk=job.owner_id)
    latest = TrainedModel.objects.filter(owner=job.owner, name=job.name).aggregate(found=Max("version"))["found"]
    TrainedModel.objects.create(
        owner=job.owner,
        team=job.team,
        job=job,
        name=job.name,
        version=(latest or 0) + 1,
        task=job.task or str(plan.get("task") or ""),
        base=str((plan.get("model") or {}).get("name") or "")[:200],
        metrics=job.metrics,
        size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    )
