"""Runs: the list, the comparison, and the page of one run with its actions and downloads."""

from typing import cast
from urllib.parse import quote

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import ProtectedError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from holdfast.core.runfolder import REPORT
from holdfast.service.jobs import leases
from holdfast.service.jobs.compare import MOST_RUNS
from holdfast.service.jobs.downloads import NoModel, model_zip
from holdfast.service.jobs.evidence_files import REPORT_POLICY, evidence_file, read_end
from holdfast.service.jobs.models import Job
from holdfast.service.jobs.secrets import without_places, without_secrets
from holdfast.service.pages.compare_page import compare
from holdfast.service.pages.live_response import live_answer
from holdfast.service.pages.run_page import page_fingerprint, read_run_page
from holdfast.service.pages.runs_page import read_runs_page
from holdfast.service.remote_runs import fetch_record

_DONE = {
    "start": "Training is queued.",
    "stop": "Stopping the run.",
    "resume": "The run is queued again.",
}


def find_run(request: HttpRequest, job_id: int) -> Job:
    """A run that this user may see; 404 for all others."""
    rows = Job.objects.visible_to(cast(User, request.user))
    found: Job = get_object_or_404(
        rows.select_related("owner", "team", "worker", "dataset", "parent", "trained_model"), pk=job_id
    )
    fetch_record(found)
    return found


@require_safe
@login_required
def show_runs(request: HttpRequest) -> HttpResponse:
    """All runs that this user may see, newest first."""
    return render(request, "pages/runs.html", {"page": read_runs_page(cast(User, request.user), request.GET)})


@require_safe
@login_required
def live_runs(request: HttpRequest) -> HttpResponse:
    """The rows of the list as they are now."""
    page = read_runs_page(cast(User, request.user), request.GET)
    return live_answer(
        request,
        (page.rows, page.count),
        lambda: render_to_string("pages/runs_rows.html", {"page": page}),
        is_done=False,
    )


@require_safe
@login_required
def show_comparison(request: HttpRequest) -> HttpResponse:
    """Compare the runs of ?ids=1,2,3, or those selected in the list."""
    parts = [part.strip() for given in request.GET.getlist("ids") for part in given.split(",")]
    ids = list(dict.fromkeys(int(part) for part in parts if part.isdecimal() and len(part) < 19))
    found = Job.objects.visible_to(cast(User, request.user)).select_related("dataset").in_bulk(ids[:MOST_RUNS])
    jobs = [found[pk] for pk in ids if pk in found]
    page = compare(jobs, missing=len(ids) - len(jobs))
    return render(request, "pages/compare.html", {"page": page, "most": MOST_RUNS})


@require_safe
@login_required
def show_run(request: HttpRequest, job_id: int) -> HttpResponse:
    """The whole page."""
    return render(request, "pages/run.html", {"run": read_run_page(find_run(request, job_id))})


@require_safe
@login_required
def live_run(request: HttpRequest, job_id: int) -> HttpResponse:
    """The live parts of the page, if any changed."""
    job = find_run(request, job_id)
    return live_answer(
        request,
        page_fingerprint(job),
        lambda: render_to_string("pages/run_parts.html", {"run": read_run_page(job)}, request),
        is_done=job.state in leases.ENDED,
    )


@require_POST
@login_required
def change_run(request: HttpRequest, job_id: int, action: str) -> HttpResponse:
    """Start, stop or resume, unless the state of the run has changed meanwhile."""
    job = find_run(request, job_id)
    act = {"start": leases.start, "stop": leases.ask_stop, "resume": leases.resume}[action]
    if act(job):
        messages.success(request, _DONE[action])
    else:
        job.refresh_from_db()
        messages.warning(request, f"Nothing changed: the run is {job.state}.")
    return redirect("run", job_id)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def delete_run(request: HttpRequest, job_id: int) -> HttpResponse:
    """Ask first, then delete the run with its folder."""
    job = find_run(request, job_id)
    if getattr(job, "trained_model", None):
        messages.warning(request, "This run has a model. Delete the model first.")
        return redirect("run", job_id)
    if request.method != "POST":
        return render(request, "pages/run_delete.html", {"job": job})
    try:
        if leases.delete(job):
            messages.success(request, f"Deleted {job.name}.")
            return redirect("runs")
    except ProtectedError:  # it finished just now
        return redirect("run-delete", job_id)
    job.refresh_from_db()
    messages.warning(request, f"Not deleted: the run is {job.state}. Stop it first.")
    return redirect("run", job_id)


@require_safe
@login_required
def retry_run(request: HttpRequest, job_id: int) -> HttpResponse:
    """Redirect to the form, filled with the settings of this run."""
    job = find_run(request, job_id)
    return HttpResponseRedirect(f"/runs/new?from={job.pk}")


@require_safe
@login_required
def show_report(request: HttpRequest, job_id: int) -> HttpResponse:
    """The report of the run, as it was written."""
    path = find_run(request, job_id).folder / REPORT
    try:
        answer = HttpResponse(without_places(path.read_text("utf-8", "replace")))
    except OSError:
        raise Http404("this run has no report") from None
    answer["Content-Security-Policy"] = REPORT_POLICY
    return answer


@require_safe
@login_required
def download_model(request: HttpRequest, job_id: int) -> HttpResponseBase:
    """The finished model as a zip, packed while it is sent."""
    job = find_run(request, job_id)
    try:
        name, chunks = model_zip(job)
    except NoModel:
        raise Http404("this run has no finished model") from None
    answer = StreamingHttpResponse(chunks, content_type="application/zip")
    answer["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name)}"
    return answer


@require_safe
@login_required
def show_evidence(request: HttpRequest, job_id: int, number: int, name: str) -> HttpResponse:
    """One file of an attempt as plain text; only the end of a long one."""
    path = evidence_file(find_run(request, job_id).folder, number, name)
    if path is None:
        raise Http404("there is no such file")
    answer = HttpResponse(without_secrets(read_end(path)), content_type="text/plain; charset=utf-8")
    answer["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return answer
