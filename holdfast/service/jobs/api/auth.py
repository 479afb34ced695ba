"""Authentication: a token in the header, or a browser session, which needs a CSRF token to change anything."""

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.errors import AuthenticationError, HttpError
from ninja.security import APIKeyCookie, HttpBearer
from ninja.utils import check_csrf

from holdfast.service.jobs import limits
from holdfast.service.jobs.api.api_errors import Forbidden
from holdfast.service.jobs.api_tokens import find_token, prefix_of
from holdfast.service.jobs.models import ApiToken, TokenScope

_READS = ("GET", "HEAD", "OPTIONS")
_OF_ACCOUNT = ("/api/tokens", "/api/secrets", "/api/hooks")


class TokenAuth(HttpBearer):
    """`Authorization: Bearer hfk_...`"""

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken:
        """The row of the token; a wrong token is refused, even if the browser is logged in."""
        prefix, address = _known_prefix(token), limits.address_of(request)
        wait_seconds = limits.token_wait_seconds(prefix, address)
        if wait_seconds:
            raise limits.TooMany("too many wrong tokens from this address", wait_seconds=wait_seconds)
        found = find_token(token)
        if found is None:
            limits.count_wrong_token(prefix, address)
            raise AuthenticationError
        if not found.allows(needed := scope_of(str(request.method), request.path)):
            raise Forbidden(
                "this token may not do that",
                found=f"{found.name} ({found.prefix}…) has the scope {found.scope}; this needs {needed}",
                try_next=("create a token with that scope on your account page",),
            )
        request.user = found.owner
        return found


def scope_of(method: str, path: str) -> str:
    """The scope that a request needs."""
    if method in _READS:
        return TokenScope.READ
    if path.startswith(_OF_ACCOUNT):
        return TokenScope.ADMIN
    return TokenScope.PREDICT if path.endswith("/predict") else TokenScope.SUBMIT


class SessionAuth(APIKeyCookie):
    """The session cookie of a login."""

    param_name = "sessionid"

    def __call__(self, request: HttpRequest) -> Any:
        """The logged-in user; nobody without a valid CSRF token, unless the request only reads."""
        if not request.user.is_authenticated:
            return None  # before the body is read, so that strangers cannot send files
        if check_csrf(request):
            raise HttpError(403, "the CSRF token is missing or wrong")
        return request.user

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        """Not used: the session middleware has read the cookie."""
        return None


def person(request: HttpRequest) -> User:
    """The user who sent the request."""
    return cast(User, request.user)


def token_of(request: HttpRequest) -> ApiToken | None:
    """The token of the request; None for a browser session."""
    found = getattr(request, "auth", None)
    return found if isinstance(found, ApiToken) else None


def _known_prefix(token: str) -> str:
    """The prefix of an existing token; empty for an unknown one, which counts against the address."""
    prefix = prefix_of(token)
    return prefix if prefix and ApiToken.objects.filter(prefix=prefix).exists() else ""
