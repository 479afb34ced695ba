"""What a run's folder holds: plan, attempts with their causes, log, events, curves, model, report."""

import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router
from pydantic import Field

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import RequestError
from holdfast.core.old_events import NewEvents
from holdfast.core.plan import Reason
from holdfast.core.records import to_record
from holdfast.core.runfolder import EVENTS, METRICS, attempt_folder
from holdfast.runs.plan_view import plan_view
from holdfast.runs.report.page import render_report
from holdfast.runs.state import read_whole_state
from holdfast.runs.story import AttemptStory, Story, read_story
from holdfast.runs.timeline import outcome_of, reached_step, span_of
from holdfast.runs.wording import reason_text
from holdfast.service.jobs.api.api_errors import REFUSALS, NotFound, Refusal
from holdfast.service.jobs.api.auth import person
from holdfast.service.jobs.api.schemas import AttemptsOut, EventsOut, Id, Json, LogOut, MetricsOut, Text
from holdfast.service.jobs.api.visible_rows import find_job
from holdfast.service.jobs.downloads import model_zip
from holdfast.service.jobs.evidence_files import REPORT_POLICY, evidence_file, evidence_names, read_end
from holdfast.service.jobs.followed import follow_story
from holdfast.service.jobs.models import Job, JobState
from holdfast.service.jobs.secrets import without_places, without_secrets

router = Router(tags=["runs"])
Number = Annotated[int, Field(ge=1, le=9999)]
_EVENT_BYTES = 1 << 18
_MOST_POINTS = 2000
_PATH = re.compile(r"(?:[A-Z]:)?(?:[/\\][^/\\\n]+){2,}[/\\]?")


@router.get("/{job_id}/plan", response={200: Json, REFUSALS: Refusal})
def get_plan(request: HttpRequest, job_id: Id) -> Any:
    """The plan: every setting with its reason, the proof, the forecast."""
    job = find_job(person(request), job_id)
    plan = plan_view(job.folder)
    if not plan:
        raise NotFound(f"run {job.pk} has no plan yet", seen=f"its state is {job.state}")
    return _each(plan, lambda text: _bare(without_secrets(text)))


@router.get("/{job_id}/attempts", response={200: AttemptsOut, REFUSALS: Refusal})
def list_attempts(request: HttpRequest, job_id: Id) -> Any:
    """Every attempt with what it changed, how it ended and why."""
    story = _story(find_job(person(request), job_id))
    return {"items": [_attempt(attempt) for attempt in story.attempts] if story else []}


@router.get("/{job_id}/attempts/{number}/files/{path:name}", response={200: LogOut, REFUSALS: Refusal})
def get_evidence(request: HttpRequest, job_id: Id, number: Number, name: Text) -> Any:
    """One of the attempt's files of evidence, as text."""
    job = find_job(person(request), job_id)
    file = evidence_file(job.folder, number, name)
    if file is None:
        known = ", ".join(evidence_names(job.folder, number)) or "none"
        raise NotFound(f"attempt {number} of run {job.pk} has no such file", seen=f"there are: {known}")
    return {"attempt": number, "text": without_secrets(read_end(file))}


@router.get("/{job_id}/log", response={200: LogOut, REFUSALS: Refusal})
def get_log(
    request: HttpRequest,
    job_id: Id,
    attempt: Number | None = None,
    lines: Annotated[int, Field(ge=1, le=1000)] = 100,
) -> Any:
    """The end of what an attempt printed; of the newest where none is named."""
    job = find_job(person(request), job_id)
    story = _story(job, read_story)  # which reads no events
    found = [one for one in (story.attempts if story else ()) if attempt in (None, one.number)]
    if not found:
        if attempt is not None:
            raise NotFound(f"run {job.pk} has no attempt {attempt}")
        return {"attempt": 0, "text": ""}
    return {"attempt": found[-1].number, "text": without_secrets(found[-1].tail(lines))}


@router.get("/{job_id}/events", response={200: EventsOut, REFUSALS: Refusal})
def list_events(
    request: HttpRequest,
    job_id: Id,
    since: Annotated[int, Field(ge=0, le=2**53)] = 0,
    attempt: Number | None = None,
) -> Any:
    """What happened since; of the run as a whole, or of one attempt, step by step."""
    job = find_job(person(request), job_id)
    folder = job.folder if attempt is None else attempt_folder(job.folder, attempt)
    items, following = _events_since(folder / EVENTS, since)
    return {"items": items, "next": following}


@router.get("/{job_id}/metrics", response={200: MetricsOut, REFUSALS: Refusal})
def get_metrics(request: HttpRequest, job_id: Id) -> Any:
    """The losses over all attempts, each evaluation, and the final figures."""
    job = find_job(person(request), job_id)
    story = _story(job)
    losses = [(step, float(event["loss"])) for step, event in story.steps.items()] if story else []
    return {
        "losses": losses[:: max(1, -(-len(losses) // _MOST_POINTS))],
        "evaluations": {str(step): figures for step, figures in story.evaluations.items()} if story else {},
        "metrics": read_artifact(job.folder / METRICS) or job.metrics,
    }


@router.get(
    "/{job_id}/model",
    response={200: None, REFUSALS: Refusal},
    openapi_extra={"responses": {200: {"description": "A zip", "content": {"application/zip": {}}}}},
)
def download_model(request: HttpRequest, job_id: Id) -> HttpResponse | StreamingHttpResponse:
    """The finished model as a zip, as `save_pretrained` leaves it."""
    job = find_job(person(request), job_id)
    name, chunks = model_zip(job)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(chunks, content_type="application/zip", headers=headers)


@router.get(
    "/{job_id}/report",
    response={200: None, REFUSALS: Refusal},
    openapi_extra={"responses": {200: {"description": "A page", "content": {"text/html": {}}}}},
)
def get_report(request: HttpRequest, job_id: Id) -> HttpResponse:
    """One self-contained HTML page with everything worth knowing of the run."""
    job = find_job(person(request), job_id)
    story = _story(job)
    if story is None:
        raise NotFound(f"run {job.pk} has no report yet", seen=f"its state is {job.state}")
    page = render_report(read_whole_state(job.folder, is_supervised=job.state == JobState.RUNNING))
    return HttpResponse(without_places(page), headers={"Content-Security-Policy": REPORT_POLICY})


def _story(job: Job, read: Callable[[Path], Story] = follow_story) -> Story | None:
    try:
        return read(job.folder)
    except RequestError:
        return None  # nobody has begun with it


def _attempt(attempt: AttemptStory) -> dict[str, Any]:
    known, span = attempt.outcome, span_of(attempt)
    _, sentence = outcome_of(attempt)
    diagnosis = attempt.diagnosis
    return {
        "number": attempt.number,
        "rung": str(attempt.rung.get("rung") or ""),
        "because": reason_text(to_record(attempt.rung.get("reason"), Reason)),
        "changes": _redacted(_object(known.get("changes")) or _object(attempt.rung.get("changes"))),
        "outcome": str(known.get("outcome") or "running"),
        "sentence": without_secrets(str(known.get("sentence") or (sentence if known else ""))),
        "slug": diagnosis.get("slug") or None,
        "confidence": str(diagnosis.get("confidence") or known.get("confidence") or ""),
        "noticed_after_seconds": known.get("noticed_after_seconds"),
        "step_reached": int(known.get("step_reached") or reached_step(attempt) or 0),
        "started": span.start if span else None,
        "seconds": round(span.end - span.start, 3) if span and known else None,
        "remedies": [str(_object(one).get("title") or one) for one in _items(diagnosis.get("remedies"))],
        "proof": [_redacted(_object(one)) for one in _items(diagnosis.get("because"))],
        "files": evidence_names(attempt.folder.parent.parent, attempt.number),
    }


def _events_since(path: Path, since: int) -> tuple[list[dict[str, Any]], int]:
    """The whole events from a place in the file on, and the place after them."""
    follow = NewEvents(path, _EVENT_BYTES, at=since)
    return [_redacted(event) for event in follow.read()], follow.at


def _redacted(value: Any) -> Any:
    """The same with every text looked through."""
    return _each(value, without_secrets)


def _each(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list) else value


def _bare(text: str) -> str:
    """A path without where it lies, which is the server's business; any other text as it is."""
    return PurePath(text).name if _PATH.fullmatch(text) else text


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
