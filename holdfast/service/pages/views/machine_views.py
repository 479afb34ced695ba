"""Machines: every worker with its checkup, and a page for each known hazard."""

from typing import cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import require_safe

from holdfast.hazards import find_hazard
from holdfast.service.pages.live_response import live_answer
from holdfast.service.pages.machines_page import read_machines


@require_safe
@login_required
def show_machines(request: HttpRequest) -> HttpResponse:
    """All workers."""
    return render(request, "pages/machines.html", {"page": read_machines(cast(User, request.user))})


@require_safe
@login_required
def live_machines(request: HttpRequest) -> HttpResponse:
    """The workers as they are now."""
    page = read_machines(cast(User, request.user))
    return live_answer(
        request,
        (page, timezone.now().minute),
        lambda: render_to_string("pages/machines_parts.html", {"page": page}, request),
        is_done=False,
    )


@require_safe
@login_required
def show_hazard(request: HttpRequest, slug: str) -> HttpResponse:
    """What is known about one hazard."""
    hazard = find_hazard(slug)
    if hazard is None:
        raise Http404
    parts = _story(hazard.story)
    return render(request, "pages/hazard.html", {"hazard": hazard, "parts": parts})


def _story(text: str) -> list[tuple[str, str]]:
    """The story's named parts: what you see, why, what we do."""
    found: list[tuple[str, str]] = []
    for paragraph in text.strip().split("\n"):
        head, colon, rest = paragraph.partition(":")
        if colon and head in ("What you see", "Why", "What we do"):
            found.append((head, rest.strip()))
        elif found and paragraph.strip():
            found[-1] = (found[-1][0], f"{found[-1][1]} {paragraph.strip()}")
    return found
