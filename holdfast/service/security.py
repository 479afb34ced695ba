"""Security headers of every response: content policy, permissions, caching. A header set by a view is kept."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from holdfast.service.jobs.api.api_errors import plain_problem

_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
# The page of the API reference uses style attributes.
_API_DOCS_POLICY = f"{_POLICY}; style-src 'self' 'unsafe-inline'"
_HEADERS = {
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_API = "/api/"


class SecurityHeaders:
    """Middleware, the outermost one: responses of other middleware pass through it, too."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]):
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response with its headers; an error of the API gets the API's shape, whatever raised it."""
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
