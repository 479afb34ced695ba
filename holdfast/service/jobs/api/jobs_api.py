"""Jobs: submit, list, start, stop, resume, retry, delete, compare; and the workers that take them."""

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from django.contrib.auth.models import User
from django.db.models import Count, ProtectedError, Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router, Status

from holdfast.core.errors import Problem, invalid_settings
from holdfast.runs.state_values import snapshot_fields
from holdfast.service.jobs import leases
from holdfast.service.jobs.api.api_errors import REFUSALS, Conflict, Refusal
from holdfast.service.jobs.api.auth import person
from holdfast.service.jobs.api.schemas import (
    CompareOut,
    Cursor,
    Goal,
    Id,
    JobDetailsOut,
    JobOut,
    JobsOut,
    Limit,
    RetryIn,
    State,
    SubmitIn,
    Text,
    WorkersOut,
)
from holdfast.service.jobs.api.visible_rows import (
    find_dataset,
    find_job,
    find_model,
    find_team,
    job_answer,
    jobs_of,
    page_of,
)
from holdfast.service.jobs.compare import MOST_RUNS, compare_runs
from holdfast.service.jobs.job_folder import ROLES
from holdfast.service.jobs.job_state import read_job
from holdfast.service.jobs.models import Dataset, Job, JobState, Worker
from holdfast.service.jobs.requests import retry_run, submit_run
from holdfast.service.jobs.secrets import redacted
from holdfast.service.jobs.workers import read_checkup

router, workers_router = Router(tags=["jobs"]), Router(tags=["workers"])
_ALIVE = timedelta(seconds=30)  # several heartbeats of a worker


@router.post("", response={201: JobOut, REFUSALS: Refusal})
def submit_job(request: HttpRequest, payload: SubmitIn) -> Any:
    """Submit a run. With the goal `plan` it waits for `start` once plan and forecast are ready."""
    user = person(request)
    others = {role: one for role, one in _others(user, payload).items() if one}
    job = submit_run(
        user,
        payload.settings,
        dataset=find_dataset(user, payload.dataset) if payload.dataset else None,
        from_model=find_model(user, payload.from_model) if payload.from_model else None,
        others=others,
        name=payload.name,
        goal=payload.goal,
        team=find_team(user, payload.team),
        priority=payload.priority,
    )
    return Status(201, job_answer(find_job(user, job.pk)))


@router.get("", response={200: JobsOut, REFUSALS: Refusal})
def list_jobs(
    request: HttpRequest,
    state: Annotated[list[State], Query(default_factory=list)],
    task: Text | None = None,
    goal: Goal | None = None,
    owner: Text | None = None,
    dataset: Id | None = None,
    parent: Id | None = None,
    contains: Text | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Any:
    """The jobs that you may see, newest first."""
    asked = {
        "state__in": state,
        "task": task,
        "goal": goal,
        "owner__username": owner,
        "dataset": dataset,
        "parent": parent,
        "name__icontains": contains,
    }
    rows = jobs_of(person(request)).filter(**{name: value for name, value in asked.items() if value})
    items, following = page_of(rows, cursor, limit)
    return {"items": map(job_answer, items), "next": following}


@router.get("/compare", response={200: CompareOut, REFUSALS: Refusal})
def compare_jobs(request: HttpRequest, ids: Text) -> Any:
    """Up to six runs side by side: `ids=3,5`."""
    numbers = ids.split(",")
    if not all(number.isascii() and number.isdecimal() and len(number) < 19 for number in numbers):
        raise invalid_settings([Problem("ids", "must be numbers separated by commas, such as 3,5")])
    if len(set(numbers)) > MOST_RUNS:
        raise invalid_settings([Problem("ids", f"too many runs; at most {MOST_RUNS}")])
    jobs = [find_job(person(request), int(number)) for number in dict.fromkeys(numbers)]
    return {"items": map(job_answer, jobs), **compare_runs(jobs)}


@router.get("/{job_id}", response={200: JobDetailsOut, REFUSALS: Refusal})
def get_job(request: HttpRequest, job_id: Id) -> Any:
    """One job, with the state of its run."""
    job = find_job(person(request), job_id)
    state = read_job(job)
    place = leases.place_in_queue(job) if job.state == JobState.QUEUED else None
    return {
        **job_answer(job),
        "run": redacted(snapshot_fields(state)) if state else None,
        "queue": {"ahead": place.ahead, "starts_in_seconds": place.starts_in_seconds} if place else None,
    }


@router.post("/{job_id}/start", response={200: JobOut, REFUSALS: Refusal})
def start_job(request: HttpRequest, job_id: Id) -> Any:
    """Start the training of a planned job."""
    return _changed(request, find_job(person(request), job_id), leases.start, "started")


@router.post("/{job_id}/stop", response={200: JobOut, REFUSALS: Refusal})
def stop_job(request: HttpRequest, job_id: Id) -> Any:
    """Stop a job; a run saves first, and `resume` continues from there."""
    return _changed(request, find_job(person(request), job_id), leases.ask_stop, "stopped")


@router.post("/{job_id}/resume", response={200: JobOut, REFUSALS: Refusal})
def resume_job(request: HttpRequest, job_id: Id) -> Any:
    """Resume a job that was stopped or has failed."""
    return _changed(request, find_job(person(request), job_id), leases.resume, "resumed")


@router.post("/{job_id}/retry", response={201: JobOut, REFUSALS: Refusal})
def retry_job(request: HttpRequest, job_id: Id, payload: RetryIn) -> Any:
    """Submit the same run again as a new one, with some settings or data changed; null removes a value."""
    user = person(request)
    job, others = find_job(user, job_id), _others(user, payload)
    again = retry_run(user, job, payload.settings, others=others, name=payload.name, goal=payload.goal or "")
    return Status(201, job_answer(find_job(user, again.pk)))


@router.delete("/{job_id}", response={204: None, REFUSALS: Refusal})
def delete_job(request: HttpRequest, job_id: Id) -> Any:
    """Delete a job that is not running, with its folder."""
    job = find_job(person(request), job_id)
    try:
        done = leases.delete(job)
    except ProtectedError:
        raise Conflict(
            f"run {job.pk} cannot be deleted",
            found="its model is in the registry",
            try_next=("delete the model first",),
        ) from None
    if not done:
        raise Conflict(
            f"run {job.pk} cannot be deleted", found=f"its state is {job.state}", try_next=("stop it first",)
        )
    return Status(204, None)


def _others(user: User, payload: SubmitIn | RetryIn) -> dict[str, Dataset | None]:
    """The datasets given for a role; None if the role is to be empty."""
    named = {role: getattr(payload, role) for role in ROLES if role in payload.model_fields_set}
    return {role: find_dataset(user, number) if number else None for role, number in named.items()}


def _changed(request: HttpRequest, job: Job, change: Any, word: str) -> dict[str, Any]:
    if not change(job):
        job.refresh_from_db()
        raise Conflict(f"run {job.pk} cannot be {word}", found=f"its state is {job.state}")
    return job_answer(find_job(person(request), job.pk))


@workers_router.get("", response={200: WorkersOut, REFUSALS: Refusal})
def list_workers(request: HttpRequest) -> Any:
    """Every worker, most recently active first."""
    running = Count("jobs", filter=Q(jobs__state=JobState.RUNNING))
    rows = Worker.objects.annotate(running=running).order_by("-beat", "name")[:200]
    return {"items": map(_worker, rows)}


def _worker(worker: Any) -> dict[str, Any]:
    same = ("name", "host", "slots", "devices", "version", "started", "beat", "running", "checked")
    return {
        **{name: getattr(worker, name) for name in same},
        "is_there": worker.beat > timezone.now() - _ALIVE,
        "findings": [msgspec.to_builtins(one) for one in read_checkup(worker).findings],
    }
