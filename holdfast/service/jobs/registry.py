"""The registry of finished models: add, promote, rename, delete and predict."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max

from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.core.records import RunPlan, read_record
from holdfast.core.runfolder import checkpoints_folder, model_folder
from holdfast.service.jobs import model_pool
from holdfast.service.jobs.models import Job, JobState, ModelStage, TrainedModel
from holdfast.service.outbox import forget_model
from holdfast.service.remote_runs import fetch_run

_MOST_TEXTS = 32


def register_model(job: Job, run: Path) -> None:
    """Add the finished model of a job to the registry, once."""
    if TrainedModel.objects.filter(job=job).exists():
        return
    plan, folder = read_record(run, RunPlan), model_folder(run)
    # Lock the owner's row: two jobs of one name that end at the same time get two version numbers.
    type(job.owner).objects.select_for_update().get(pk=job.owner_id)
    latest = TrainedModel.objects.filter(owner=job.owner, name=job.name).aggregate(found=Max("version"))["found"]
    TrainedModel.objects.create(
        owner=job.owner,
        team=job.team,
        job=job,
        name=job.name,
        version=(latest or 0) + 1,
        task=job.task or (plan.task if plan else ""),
        base=(plan.model.name if plan else "")[:200],
        metrics=job.metrics,
        size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    )


def promote(model: TrainedModel) -> TrainedModel:
    """Promote a version; the promoted version of the same name becomes a candidate."""
    with transaction.atomic():
        _lock_owner(model)
        same = TrainedModel.objects.filter(owner=model.owner_id, name=model.name)
        same.exclude(pk=model.pk).filter(stage=ModelStage.PROMOTED).update(stage=ModelStage.CANDIDATE)
        same.filter(pk=model.pk).update(stage=ModelStage.PROMOTED)
    model.refresh_from_db()
    return model


def demote(model: TrainedModel) -> TrainedModel:
    """Make the version a candidate again."""
    TrainedModel.objects.filter(pk=model.pk).update(stage=ModelStage.CANDIDATE)
    model.refresh_from_db()
    return model


def rename(model: TrainedModel, name: str) -> TrainedModel:
    """Rename the model; if the name is taken, it becomes the next version there, as a candidate."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name)
    name = " ".join(shown.split())
    if not 1 <= len(name) <= 200:
        raise invalid_settings([Problem("name", "must have 1 to 200 characters")])
    if name == model.name:
        return model
    with transaction.atomic():
        _lock_owner(model)
        others = TrainedModel.objects.filter(owner=model.owner_id, name=name)
        latest = others.aggregate(found=Max("version"))["found"] or 0
        stage = model.stage if not latest else ModelStage.CANDIDATE
        TrainedModel.objects.filter(pk=model.pk).update(name=name, version=latest + 1, stage=stage)
    model.refresh_from_db()
    return model


def remove(model: TrainedModel) -> None:
    """Delete a model and its files; the record of its run stays."""
    job: Job = model.job
    if job.state in (JobState.QUEUED, JobState.RUNNING):
        raise RequestError(f"the run of {model} is {job.state}", try_next=("stop the run first",))
    waiting = Job.objects.filter(request__from_run=job.pk, state__in=(JobState.QUEUED, JobState.RUNNING))
    if names := list(waiting.values_list("name", flat=True)[:3]):
        raise RequestError(f"another run continues from {model}", found=", ".join(names))
    model_pool.forget(job.folder)
    model.delete()
    for folder in (model_folder(job.folder), checkpoints_folder(job.folder), job.folder / "search"):
        _remove_folder(folder)
    forget_model(job)


def predict(model: TrainedModel, texts: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """The model's answer to each text."""
    if len(texts) > _MOST_TEXTS:
        raise RequestError(f"too many texts; the limit is {_MOST_TEXTS}", found=f"{len(texts):,} texts")
    fetch_run(model.job)
    return [model_pool.ask(model.job.folder, text, **options) for text in texts]


def _lock_owner(model: TrainedModel) -> None:
    """Serialize changes to the names and stages of one user's models."""
    User.objects.select_for_update().get(pk=model.owner_id)


def _remove_folder(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that nobody sees half a model."""
    gone = folder.with_name(f".gone-{uuid4().hex}")
    try:
        folder.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)
