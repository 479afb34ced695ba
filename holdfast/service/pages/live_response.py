"""Responses that a page polls for: a fragment with its ETag, or 304 when nothing is new."""

import hashlib
from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import patch_cache_control


def live_answer(
    request: HttpRequest, seen: Iterable[object], render: Callable[[], str], *, is_done: bool
) -> HttpResponse:
    """The fragment, or 304 if the browser has it already; rendered only if `seen`, what it is made of, changed."""
    mark = '"' + hashlib.sha256(repr(tuple(seen)).encode()).hexdigest()[:24] + '"'
    is_known = mark in {part.strip().removeprefix("W/") for part in request.headers.get("If-None-Match", "").split(",")}
    answer = HttpResponseNotModified() if is_known else HttpResponse(render())
    answer["ETag"] = mark
    answer["Vary"] = "Cookie"
    if is_done:
        answer["X-Live"] = "done"
    patch_cache_control(answer, private=True, no_cache=True)
    return answer
