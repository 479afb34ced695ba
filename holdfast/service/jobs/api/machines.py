"""The machines that take jobs, and what doctor found on each."""

from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from holdfast.service.jobs.api.answers import WorkersAnswer
from holdfast.service.jobs.api.errors import REFUSALS, Refusal
from holdfast.service.jobs.models import Job, Worker

router = Router(tags=["workers"])
_THERE = timedelta(seconds=30)  # several of a worker's beats


@router.get("", response={200: WorkersAnswer, REFUSALS: Refusal})
def list_workers(request: HttpRequest) -> Any:
    """Every worker that was ever here, the last heard of first."""
    running = Count("jobs", filter=Q(jobs__state=Job.State.RUNNING))
    rows = Worker.objects.annotate(running=running).order_by("-beat", "name")[:200]
    return {"items": map(_worker, rows)}


def _worker(worker: Any) -> dict[str, Any]:
    same = ("name", "host", "slots", "devices", "version", "started", "beat", "running", "checked")
    findings = worker.checkup.get("findings") if isinstance(worker.checkup, dict) else None
    return {
        **{name: getattr(worker, name) for name in same},
        "is_there": worker.beat > timezone.now() - _THERE,
        "findings": [one for one in findings or [] if isinstance(one, dict)],
    }
