"""The list of runs."""

from typing import cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from holdfast.service.pages.answers import live_answer
from holdfast.service.pages.run_rows import read_runs_page


@require_safe
@login_required
def show_runs(request: HttpRequest) -> HttpResponse:
    """All runs that this person may see, the newest first."""
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
