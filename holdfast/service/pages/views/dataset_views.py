"""Datasets: the list, the upload, one dataset with its survey."""

from dataclasses import asdict
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from holdfast.core.errors import HoldfastError
from holdfast.core.text import human_bytes
from holdfast.service.jobs import datasets, uploads
from holdfast.service.jobs.models import Dataset
from holdfast.service.jobs.shown_errors import error_line, page_error
from holdfast.service.pages.dataset_page import read_dataset, read_list
from holdfast.service.pages.live_response import live_answer

_FIELDS = (
    *("task", "label_column", "group_column", "encoding", "delimiter", "header", "multi_label", "max_bad_rows"),
    "min_score",
)


@require_safe
@login_required
def show_datasets(request: HttpRequest) -> HttpResponse:
    """All datasets that this user may see, newest first."""
    page = read_list(cast(User, request.user), request.GET.get("q", ""), request.GET.get("page", ""))
    return render(request, "pages/datasets.html", {"page": page})


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def new_dataset(request: HttpRequest) -> HttpResponse:
    """The upload: a plain form, to which a script adds a progress bar."""
    if request.method != "POST":
        return _upload_form(request, None)
    user = cast(User, request.user)
    try:
        dataset = _received(request, user)
    except HoldfastError as error:
        if request.headers.get("X-Requested-With") == "upload":
            return JsonResponse(asdict(page_error(error)), status=400)
        return _upload_form(request, error)
    if request.headers.get("X-Requested-With") == "upload":
        return JsonResponse({"url": f"/datasets/{dataset.pk}"})
    return redirect("dataset", dataset.pk)


@require_safe
@login_required
def show_dataset(request: HttpRequest, pk: int) -> HttpResponse:
    """One dataset."""
    return render(request, "pages/dataset.html", {"page": read_dataset(_visible(request, pk), request.user)})


@require_safe
@login_required
def live_dataset(request: HttpRequest, pk: int) -> HttpResponse:
    """The progress of the survey, and the page's parts once it is done."""
    page = read_dataset(_visible(request, pk), request.user)
    is_done = page.state != "surveying"
    return live_answer(
        request,
        (page.state, page.doing, page.share),
        lambda: render_to_string("pages/dataset_parts.html", {"page": page}, request),
        is_done=is_done,
    )


@require_POST
@login_required
def choose(request: HttpRequest, pk: int) -> HttpResponse:
    """Survey again with these choices."""
    dataset = _visible(request, pk)
    given: dict[str, Any] = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    given["text_column"] = request.POST.getlist("text_column")
    try:
        datasets.choose(dataset, given)
    except HoldfastError as error:
        messages.error(request, error_line(error))
    return redirect("dataset", pk)


@require_POST
@login_required
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a dataset that no run uses."""
    dataset = _visible(request, pk)
    try:
        datasets.remove(dataset, request.user)
    except HoldfastError as error:
        messages.error(request, error_line(error))
        return redirect("dataset", pk)
    messages.success(request, f"Deleted {dataset.name} and its file.")
    return redirect("datasets")


def _visible(request: HttpRequest, pk: int) -> Dataset:
    found = Dataset.objects.visible_to(request.user).select_related("owner", "team")
    return cast(Dataset, get_object_or_404(found, pk=pk))


def _received(request: HttpRequest, user: User) -> Dataset:
    file = request.FILES.get("file")
    if refused := getattr(request, "upload_refused", None):
        raise refused
    if file is None:
        raise HoldfastError("no file chosen", try_next=("choose a file to upload",))
    team_id = request.POST.get("team", "")
    team = user.groups.filter(pk=int(team_id)).first() if team_id.isdecimal() and len(team_id) < 12 else None
    return uploads.receive(user, file, request.POST.get("name", ""), team)


def _upload_form(request: HttpRequest, error: HoldfastError | None) -> HttpResponse:
    context = {
        "error": page_error(error) if error else None,
        "name": request.POST.get("name", "")[:200] if error else "",
        "teams": list(cast(User, request.user).groups.order_by("name")),
        "limit": human_bytes(settings.UPLOAD_BYTES),
        "limit_bytes": settings.UPLOAD_BYTES,
        "rows": f"{settings.UPLOAD_ROWS:,}",
    }
    return render(request, "pages/dataset_new.html", context, status=400 if error else 200)
