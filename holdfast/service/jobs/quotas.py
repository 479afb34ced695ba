"""How much of a shared service one user may use: waiting runs, datasets, disk space and priority.

How many runs of one user train at once is decided where jobs are claimed (`leases.claimable`). Administrators have no
limits. Each limit is a setting of the service; 0 disables it.
"""

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet, Sum

from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.core.text import human_bytes, plural
from holdfast.service.jobs.models import Dataset, DatasetState, Job, JobState, TrainedModel


class QuotaReached(RequestError):
    """A user has reached a limit; the request itself is fine."""

    status = 429


def check_new_run(owner: User, priority: int) -> None:
    """Refuse a run beyond the owner's limits."""
    if owner.is_superuser:
        return
    if priority > 0:
        raise invalid_settings([Problem("priority", "above 0 only for administrators", str(priority))])
    waiting = Job.objects.filter(owner=owner, state=JobState.QUEUED)
    _require(waiting, settings.QUEUED_PER_USER, "run", "in the queue", "wait for one to start, or stop one")


def check_new_upload(owner: User, size_bytes: int) -> None:
    """Refuse a dataset beyond the owner's limits."""
    if owner.is_superuser:
        return
    datasets = Dataset.objects.filter(owner=owner)
    _require(datasets, settings.DATASETS_PER_USER, "dataset", "", "delete datasets that you no longer need")
    reading = datasets.filter(state=DatasetState.SURVEYING)
    _require(reading, settings.SURVEYS_PER_USER, "dataset", "being surveyed", "wait until one is ready")
    check_room_of(owner, size_bytes)


def check_room_of(owner: User, size_bytes: int) -> None:
    """Refuse data beyond what the owner may store in datasets and models."""
    most, used = settings.BYTES_PER_USER, stored_bytes(owner)
    if most and not owner.is_superuser and used + size_bytes > most:
        raise QuotaReached(
            "your storage on this service is full",
            found=f"your datasets and models use {human_bytes(used)}, and this one needs {human_bytes(size_bytes)}; "
            f"the limit is {human_bytes(most)}",
            try_next=(
                "delete datasets or models that you no longer need",
                "ask an administrator to raise HOLDFAST_BYTES_PER_USER",
            ),
        )


def stored_bytes(owner: User) -> int:
    """The size of a user's datasets and models."""
    rows = (Dataset.objects.filter(owner=owner), TrainedModel.objects.filter(owner=owner))
    return sum(one.aggregate(total=Sum("size_bytes"))["total"] or 0 for one in rows)


def _require(rows: "QuerySet[Job] | QuerySet[Dataset]", most: int, noun: str, how: str, advice: str) -> None:
    if most and (found := rows.count()) >= most:
        raise QuotaReached(
            f"you have reached your limit of {plural(most, noun)} {how}".rstrip(),
            found=plural(found, noun),
            try_next=(advice, "ask an administrator for a higher limit"),
        )
