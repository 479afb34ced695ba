"""What every answer carries: from where a page may load, what it may use, and that private pages are not kept.

A header that a view has set already stays as it is.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from holdfast.service.jobs.api.api_errors import plain_problem

_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
# The page of the API's documents styles its parts by attributes.
_API_DOCS_POLICY = f"{_POLICY}; style-src 'self' 'unsafe-inline'"
_HEADERS = {
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_API = "/api/"


class SafeAnswers:
    """Middleware, the outermost: also what other middleware answers goes through here."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]):
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The answer with its headers; an error of the API in the API's shape, whoever gave it."""
        response = self._get_response(request)
        is_api = request.path_info.startswith(_API)
        if is_api and response.status_code >= 400 and "json" not in response.headers.get("Content-Type", ""):
            response = _in_shape(response)
        policy = _API_DOCS_POLICY if request.path_info == f"{_API}docs" else _POLICY
        for name, value in {"Content-Security-Policy": policy, **_HEADERS}.items():
            response.headers.setdefault(name, value)
        return response


def _in_shape(response: HttpResponseBase) -> HttpResponse:
    made = JsonResponse(plain_problem(response.status_code), status=response.status_code)
    for name in ("Allow", "Retry-After", "WWW-Authenticate"):
        if name in response.headers:
            made.headers[name] = response.headers[name]
    return made
