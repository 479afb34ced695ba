"""Finds the rows that a user may see, one or a page of them, and turns them into responses."""

from typing import Any, TypeVar

from django.contrib.auth.models import Group, User
from django.db.models import Model, QuerySet

from holdfast.core.errors import Problem, invalid_settings
from holdfast.service.jobs.api.api_errors import NotFound
from holdfast.service.jobs.models import Dataset, Job, TrainedModel
from holdfast.service.jobs.shown_errors import kept_api_error
from holdfast.service.remote_runs import fetch_record

Row = TypeVar("Row", bound=Model)


def jobs_of(user: User) -> QuerySet[Job]:
    """The jobs that a user may see, with what responses need."""
    return Job.objects.visible_to(user).select_related("owner", "team", "worker", "trained_model")


def find_job(user: User, number: int) -> Job:
    """A job that this user may see."""
    found: Job = _found(jobs_of(user).filter(pk=number).first(), f"there is no run {number}")
    fetch_record(found)
    return found


def datasets_of(user: User) -> QuerySet[Dataset]:
    """The datasets that a user may see."""
    return Dataset.objects.visible_to(user).select_related("owner", "team")


def find_dataset(user: User, number: int) -> Dataset:
    """A dataset that this user may see."""
    return _found(datasets_of(user).filter(pk=number).first(), f"there is no dataset {number}")


def models_of(user: User) -> QuerySet[TrainedModel]:
    """The models that a user may see."""
    return TrainedModel.objects.visible_to(user).select_related("owner", "team")


def find_model(user: User, number: int) -> TrainedModel:
    """A model that this user may see."""
    return _found(models_of(user).filter(pk=number).first(), f"there is no model {number}")


def find_team(user: User, name: str | None) -> Group | None:
    """A team by name; a team that the user is not in is treated as unknown."""
    if not name:
        return None
    teams = Group.objects.all() if user.is_superuser else user.groups.all()
    team = teams.filter(name=name).first()
    if team is None:
        known = ", ".join(user.groups.order_by("name").values_list("name", flat=True)) or "none"
        raise invalid_settings([Problem("team", f"not one of your teams; yours: {known}", repr(name))])
    return team


def page_of(rows: "QuerySet[Row]", cursor: int | None, limit: int) -> tuple[list[Row], int | None]:
    """The newest rows after a cursor, and the cursor of the page after them."""
    found = rows.filter(pk__lt=cursor) if cursor else rows
    items = list(found.order_by("-pk")[: limit + 1])
    return items[:limit], items[limit - 1].pk if len(items) > limit else None


def job_answer(job: Job) -> dict[str, Any]:
    """A job as the API returns it."""
    model = getattr(job, "trained_model", None)
    same = ("goal", "device", "priority", "state", "stop_asked", "created", "queued", "started", "ended", "task")
    copied = ("phase", "step", "steps", "loss", "eta_seconds", "attempts", "metrics")
    return {
        "id": job.pk,
        "name": job.name,
        "owner": job.owner.get_username(),
        "team": job.team.name if job.team else None,
        "dataset": job.dataset_id,
        "parent": job.parent_id,
        "model": model.pk if model else None,
        "settings": job.request,
        "worker": job.worker.name if job.worker else None,
        "silent_since": job.silent_since,
        "error": kept_api_error(job.error),
        "sentence": job.sentence,
        **{name: getattr(job, name) for name in (*same, *copied)},
    }


def dataset_answer(dataset: Dataset) -> dict[str, Any]:
    """A dataset as the API returns it."""
    same = ("name", "file_name", "size_bytes", "sha256", "state", "choices", "created")
    return {
        "id": dataset.pk,
        "owner": dataset.owner.get_username(),
        "team": dataset.team.name if dataset.team else None,
        "problem": kept_api_error(dataset.problem),
        **{name: getattr(dataset, name) for name in same},
    }


def model_answer(model: TrainedModel) -> dict[str, Any]:
    """A model as the API returns it."""
    same = ("name", "version", "stage", "task", "base", "metrics", "size_bytes", "created")
    return {
        "id": model.pk,
        "owner": model.owner.get_username(),
        "team": model.team.name if model.team else None,
        "job": model.job_id,
        **{name: getattr(model, name) for name in same},
    }


def _found(row: Row | None, words: str) -> Row:
    if row is None:
        raise NotFound(words)
    return row
