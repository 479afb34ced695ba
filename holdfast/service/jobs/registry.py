"""The registry of finished models: which one people should use, what it is called, and how it goes away."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import checkpoints_folder, model_folder
from holdfast.service.fetched import fetch_run
from holdfast.service.jobs import try_it
from holdfast.service.jobs.models import Job, TrainedModel
from holdfast.service.unsent import forget_model

_MOST_TEXTS = 32


def promote(model: TrainedModel) -> TrainedModel:
    """Make this the one that people should use; the one before it of the same name steps back."""
    with transaction.atomic():
        _lock_owner(model)
        same = TrainedModel.objects.filter(owner=model.owner_id, name=model.name)
        same.exclude(pk=model.pk).filter(stage=TrainedModel.Stage.PROMOTED).update(stage=TrainedModel.Stage.CANDIDATE)
        same.filter(pk=model.pk).update(stage=TrainedModel.Stage.PROMOTED)
    model.refresh_from_db()
    return model


def demote(model: TrainedModel) -> TrainedModel:
    """Make it a candidate again."""
    TrainedModel.objects.filter(pk=model.pk).update(stage=TrainedModel.Stage.CANDIDATE)
    model.refresh_from_db()
    return model


def rename(model: TrainedModel, name: str) -> TrainedModel:
    """Give it another name; under a name that is taken it becomes the next version there, as a candidate."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name)
    name = " ".join(shown.split())
    if not 1 <= len(name) <= 200:
        raise RequestError("a model's name needs 1 to 200 characters", seen=f"{len(name)} characters")
    if name == model.name:
        return model
    with transaction.atomic():
        _lock_owner(model)
        others = TrainedModel.objects.filter(owner=model.owner_id, name=name)
        latest = others.aggregate(found=Max("version"))["found"] or 0
        stage = model.stage if not latest else TrainedModel.Stage.CANDIDATE
        TrainedModel.objects.filter(pk=model.pk).update(name=name, version=latest + 1, stage=stage)
    model.refresh_from_db()
    return model


def remove(model: TrainedModel) -> None:
    """Delete a model: its files go, the record of its run stays."""
    job: Job = model.job
    if job.state in (Job.State.QUEUED, Job.State.RUNNING):
        raise RequestError(f"the run of {model} is {job.state}", try_next=("stop it first",))
    waiting = Job.objects.filter(request__from_run=job.pk, state__in=(Job.State.QUEUED, Job.State.RUNNING))
    if names := list(waiting.values_list("name", flat=True)[:3]):
        raise RequestError(f"{model} is what another run goes on from", seen=", ".join(names))
    try_it.forget(job.folder)
    model.delete()
    for folder in (model_folder(job.folder), checkpoints_folder(job.folder), job.folder / "search"):
        _remove_folder(folder)
    forget_model(job)


def predict(model: TrainedModel, texts: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """What the model says to each text."""
    if len(texts) > _MOST_TEXTS:
        raise RequestError(f"at most {_MOST_TEXTS} texts can be asked at once", seen=f"{len(texts):,} texts")
    fetch_run(model.job)
    return [try_it.ask(model.job.folder, text, **options) for text in texts]


def _lock_owner(model: TrainedModel) -> None:
    """Whoever changes the names and stages of one person's models does so one after the other."""
    User.objects.select_for_update().get(pk=model.owner_id)


def _remove_folder(folder: Path) -> None:
    """Away in one rename first: nobody sees half a model."""
    gone = folder.with_name(f".gone-{uuid4().hex}")
    try:
        folder.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)
