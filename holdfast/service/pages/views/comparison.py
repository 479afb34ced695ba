"""Runs side by side."""

from typing import cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from holdfast.service.jobs.compare import MOST_RUNS
from holdfast.service.jobs.models import Job
from holdfast.service.pages.comparing import compare


@require_safe
@login_required
def show_comparison(request: HttpRequest) -> HttpResponse:
    """Compare the runs that ?ids=1,2,3 names, or that were chosen one by one in a list."""
    parts = [part.strip() for given in request.GET.getlist("ids") for part in given.split(",")]
    ids = list(dict.fromkeys(int(part) for part in parts if part.isdecimal() and len(part) < 19))
    found = Job.objects.visible_to(cast(User, request.user)).select_related("dataset").in_bulk(ids[:MOST_RUNS])
    jobs = [found[pk] for pk in ids if pk in found]
    page = compare(jobs, missing=len(ids) - len(jobs))
    return render(request, "pages/compare.html", {"page": page, "most": MOST_RUNS})
