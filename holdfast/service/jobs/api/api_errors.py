"""Every error of the API in one shape, with a fitting status."""

from typing import Any, Literal

from django.core.exceptions import SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI, Schema
from ninja.errors import AuthenticationError, HttpError, ValidationError
from pydantic import Field

from holdfast.core.errors import HoldfastError, Problem, RequestError, invalid_settings
from holdfast.service.jobs.limits import TooMany
from holdfast.service.jobs.shown_errors import api_error

# Statuses that every operation may return besides its own.
REFUSALS = frozenset({400, 401, 403, 404, 409, 413, 422, 429})
_WORDS = {
    400: "the request cannot be read",
    401: "a token or a login is required",
    403: "this is not allowed",
    404: "not found",
    405: "this address does not support that method",
    413: "the request is too large",
    429: "too many attempts",
    500: "this is a bug in Holdfast",
}


class ProblemOut(Schema):
    """One invalid setting or field of a request."""

    setting: str
    text: str
    value: str


class ActionOut(Schema):
    """Advice as a value: set or unset a setting, or run a command on the machine that trains."""

    kind: Literal["set", "unset", "run"]
    setting: str
    value: Any
    placeholder: str
    command: str
    note: str


class ErrorOut(Schema):
    """What failed, what was found and what to try; `slug` names a known hazard."""

    what: str
    found: str = ""
    try_next: list[str] = Field(default_factory=list)
    slug: str = ""
    setting: str = Field("", description="The setting at fault, if there is one.")
    problems: list[ProblemOut] = Field(default_factory=list, description="All invalid settings, each with its text.")
    actions: list[ActionOut] = Field(default_factory=list, description="What a program can try.")


class Refusal(Schema):
    """The one shape of every error."""

    error: ErrorOut


class NotFound(RequestError):
    """It does not exist, or this user may not see it."""

    status = 404


class Conflict(RequestError):
    """The state of the resource does not allow this request."""

    status = 409


class Forbidden(RequestError):
    """This token is not allowed to do that."""

    status = 403


def problem_of(error: HoldfastError) -> dict[str, Any]:
    """The body of an error response."""
    return {"error": api_error(error)}


def plain_problem(status: int, found: str = "") -> dict[str, Any]:
    """The body of an error that has only a status."""
    what = _WORDS.get(status, "the request was refused")
    return problem_of(HoldfastError(what, found=found))


def answer_errors(api: NinjaAPI) -> None:
    """Return every error of the API in the one shape."""

    def answer(request: HttpRequest, status: int, body: dict[str, Any]) -> HttpResponse:
        return api.create_response(request, body, status=status)

    def on_holdfast(request: HttpRequest, error: Any) -> HttpResponse:
        status = getattr(error, "status", 422 if isinstance(error, RequestError) else 409)
        response = answer(request, status, problem_of(error))
        if isinstance(error, TooMany):
            response["Retry-After"] = str(max(1, round(error.wait_seconds)))
        return response

    def on_invalid(request: HttpRequest, error: Any) -> HttpResponse:
        refused = getattr(request, "upload_refused", None)  # a refused upload never becomes a field
        if isinstance(refused, HoldfastError):
            return answer(request, 413, problem_of(refused))
        return answer(request, 422, problem_of(invalid_settings([_invalid(one) for one in error.errors[:20]])))

    def on_http(request: HttpRequest, error: Any) -> HttpResponse:
        if isinstance(error, AuthenticationError):
            response = answer(request, 401, plain_problem(401))
            response["WWW-Authenticate"] = 'Bearer realm="holdfast"'
            return response
        return answer(request, error.status_code, plain_problem(error.status_code, str(error)))

    def on_absent(request: HttpRequest, error: Any) -> HttpResponse:
        return answer(request, 404, plain_problem(404))

    def on_suspicious(request: HttpRequest, error: Any) -> HttpResponse:
        return answer(request, 400, plain_problem(400, type(error).__name__))

    api.add_exception_handler(HoldfastError, on_holdfast)
    api.add_exception_handler(ValidationError, on_invalid)
    api.add_exception_handler(HttpError, on_http)
    api.add_exception_handler(Http404, on_absent)
    api.add_exception_handler(SuspiciousOperation, on_suspicious)


def _invalid(problem: dict[str, Any]) -> Problem:
    where = ".".join(str(part) for part in problem.get("loc", ())[1:] if part not in ("payload", "about"))
    return Problem(where or "body", str(problem.get("msg", "is not valid"))[:300])
