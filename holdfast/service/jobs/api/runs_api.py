"""What the folder of a run holds: plan, attempts with their causes, log, events, curves, model, report."""

import re
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router
from pydantic import Field

from holdfast.core.event_log import EventTail
from holdfast.core.records import ResumeCheck, RunPlan, read_record
from holdfast.core.runfolder import EVENTS, attempt_folder
from holdfast.runs.proof_wording import candidate_verdict, forecast_basis, proof_reason
from holdfast.runs.report.page import render_report
from holdfast.runs.state import Records, read_records
from holdfast.runs.state_values import snapshot_fields
from holdfast.runs.wording import cause_text
from holdfast.service.jobs.api.api_errors import REFUSALS, NotFound, Refusal
from holdfast.service.jobs.api.auth import person
from holdfast.service.jobs.api.schemas import AttemptsOut, EventsOut, Id, Json, LogOut, MetricsOut, Text
from holdfast.service.jobs.api.visible_rows import find_job
from holdfast.service.jobs.downloads import model_zip
from holdfast.service.jobs.evidence_files import REPORT_POLICY, evidence_file, evidence_names, read_end
from holdfast.service.jobs.job_state import read_job
from holdfast.service.jobs.secrets import each_text, redacted, without_places, without_secrets

router = Router(tags=["runs"])
Number = Annotated[int, Field(ge=1, le=9999)]
_EVENT_BYTES = 1 << 18
_MOST_POINTS = 2000
_PATH = re.compile(r"(?:[A-Z]:)?(?:[/\\][^/\\\n]+){2,}[/\\]?")


@router.get("/{job_id}/plan", response={200: Json, REFUSALS: Refusal})
def get_plan(request: HttpRequest, job_id: Id) -> Any:
    """The plan: every setting with its reason, the proof, the forecast."""
    job = find_job(person(request), job_id)
    records = read_records(job.folder)
    if records.plan is None:
        raise NotFound(f"run {job.pk} has no plan yet", found=f"its state is {job.state}")
    return each_text(_whole_plan(job.folder, records.plan, records), lambda text: _bare(without_secrets(text)))


@router.get("/{job_id}/attempts", response={200: AttemptsOut, REFUSALS: Refusal})
def list_attempts(request: HttpRequest, job_id: Id) -> Any:
    """Every attempt with what it changed, how it ended and why."""
    job = find_job(person(request), job_id)
    state = read_job(job)
    if state is None:
        return {"items": []}
    worded = [
        {**fields, "sentence": cause_text(one), "files": evidence_names(job.folder, one.number)}
        for one, fields in zip(state.attempts, snapshot_fields(state)["attempts"], strict=True)
    ]
    return {"items": redacted(worded)}


@router.get("/{job_id}/attempts/{number}/files/{path:name}", response={200: LogOut, REFUSALS: Refusal})
def get_evidence(request: HttpRequest, job_id: Id, number: Number, name: Text) -> Any:
    """One evidence file of an attempt, as text."""
    job = find_job(person(request), job_id)
    file = evidence_file(job.folder, number, name)
    if file is None:
        known = ", ".join(evidence_names(job.folder, number)) or "none"
        raise NotFound(f"attempt {number} of run {job.pk} has no such file", found=f"files: {known}")
    return {"attempt": number, "text": without_secrets(read_end(file))}


@router.get("/{job_id}/log", response={200: LogOut, REFUSALS: Refusal})
def get_log(
    request: HttpRequest,
    job_id: Id,
    attempt: Number | None = None,
    lines: Annotated[int, Field(ge=1, le=1000)] = 100,
) -> Any:
    """The end of what an attempt printed; by default of the newest attempt."""
    job = find_job(person(request), job_id)
    state = read_job(job)
    found = [one for one in (state.attempts if state else ()) if attempt in (None, one.number)]
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
    """What happened since; in the run as a whole, or in one attempt, step by step."""
    job = find_job(person(request), job_id)
    folder = job.folder if attempt is None else attempt_folder(job.folder, attempt)
    tail = EventTail(folder / EVENTS, _EVENT_BYTES, at=since)
    items = [redacted(msgspec.to_builtins(event)) for event in tail.read()]
    return {"items": items, "next": tail.at}


@router.get("/{job_id}/metrics", response={200: MetricsOut, REFUSALS: Refusal})
def get_metrics(request: HttpRequest, job_id: Id) -> Any:
    """The losses over all attempts, each evaluation, and the final metrics."""
    job = find_job(person(request), job_id)
    state = read_job(job)
    losses = state.curves.losses() if state else []
    return {
        "losses": losses[:: max(1, -(-len(losses) // _MOST_POINTS))],
        "evaluations": {str(step): metrics for step, metrics in state.curves.evaluations.items()} if state else {},
        "metrics": (state.records.metrics.scores if state else {}) or job.metrics,
    }


@router.get(
    "/{job_id}/model",
    response={200: None, REFUSALS: Refusal},
    openapi_extra={"responses": {200: {"description": "A zip file", "content": {"application/zip": {}}}}},
)
def download_model(request: HttpRequest, job_id: Id) -> HttpResponse | StreamingHttpResponse:
    """The finished model as a zip, in the format of `save_pretrained`."""
    job = find_job(person(request), job_id)
    name, chunks = model_zip(job)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(chunks, content_type="application/zip", headers=headers)


@router.get(
    "/{job_id}/report",
    response={200: None, REFUSALS: Refusal},
    openapi_extra={"responses": {200: {"description": "An HTML page", "content": {"text/html": {}}}}},
)
def get_report(request: HttpRequest, job_id: Id) -> HttpResponse:
    """One self-contained HTML page with everything about the run."""
    job = find_job(person(request), job_id)
    state = read_job(job)
    if state is None:
        raise NotFound(f"run {job.pk} has no report yet", found=f"its state is {job.state}")
    return HttpResponse(without_places(render_report(state)), headers={"Content-Security-Policy": REPORT_POLICY})


def _bare(text: str) -> str:
    """Only the name of a path, so that the server's folders are not shown; any other text unchanged."""
    return PurePath(text).name if _PATH.fullmatch(text) else text


def _whole_plan(run: Path, plan: RunPlan, records: Records) -> Any:
    """Every setting with its reason, the proof, the timings and the forecast as one JSON object."""
    proof, forecast, check = records.proof, records.forecast, read_record(run, ResumeCheck)
    candidates = proof.candidates if proof else ()
    plain = {
        "task": plan.task,
        "model": plan.model,
        "choices": records.choices,
        "settings": records.settings,
        "memory": plan.memory,
        "measured": [{**msgspec.to_builtins(one), "because": candidate_verdict(one)} for one in candidates],
        "forecast": {**msgspec.to_builtins(forecast), "because": forecast_basis(forecast)} if forecast else {},
        "proof": {**msgspec.to_builtins(proof), "because": proof_reason(proof), "resume": check} if proof else {},
    }
    return msgspec.to_builtins(plain)
