"""Rate limits: for passwords by name and address, by name, and by address; for tokens by prefix and address; and for
test messages of hooks, which may go to any address.

An attempt is counted in the database before it is checked, so that several web processes, or several attempts at once,
get no more attempts than one. A correct password removes its own count.
"""

import hashlib
import ipaddress
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone

from holdfast.core.errors import RequestError
from holdfast.service.jobs.models import LoginFailure

WINDOW_SECONDS = 900
TRIES = 8  # for one name from one address
TRIES_OF_NAME = 40  # for one name from all addresses; a one-time link still works for someone locked out this way
TRIES_OF_ADDRESS = 60  # for all names from one address
TESTS = 5  # test messages of hooks, for one user

_Keys = tuple[tuple[str, int], ...]  # each with its number of attempts


class TooMany(RequestError):
    """Too many attempts."""

    status = 429

    def __init__(self, what: str, *, wait_seconds: float):
        super().__init__(what, found=f"try again in {wait_seconds:.0f} s")
        self.wait_seconds = wait_seconds


class LimitedBackend(ModelBackend):
    """Django's password check with a limit of attempts, on the login page, in the admin and everywhere else."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> User | None:
        """The user with this name and password; nobody after too many failed attempts."""
        if request is None or username is None or password is None:
            return super().authenticate(request, username, password, **more)
        keys = _login_keys(username, address_of(request))
        tries = _count(keys)
        if tries is None:
            raise PermissionDenied  # the password is not even checked
        user = super().authenticate(request, username, password, **more)
        if user is not None:
            # Other attempts from this address, and for this name elsewhere, stay counted: they were not this user's.
            LoginFailure.objects.filter(Q(key=keys[0][0]) | Q(pk__in=tries)).delete()
        return user


def login_wait_seconds(name: str, address: str) -> float:
    """How long this name must wait at this address; 0 if it may try."""
    return _wait_seconds(_login_keys(name, address))


def token_wait_seconds(prefix: str, address: str) -> float:
    """How long tokens with this prefix must wait at this address; 0 if one may be tried."""
    return _wait_seconds(_token_keys(prefix, address))


def count_wrong_token(prefix: str, address: str) -> None:
    """Count a wrong token; those with an unknown prefix are counted together."""
    _count(_token_keys(prefix, address))


def count_test(person: User) -> None:
    """Count a test message; refuse it after too many by this user."""
    keys = ((_key("test", str(person.pk)), TESTS),)
    if _count(keys) is None:
        what = f"too many test messages; the limit is {TESTS} in {WINDOW_SECONDS // 60} minutes"
        raise TooMany(what, wait_seconds=max(1.0, _wait_seconds(keys)))


def forget_old() -> int:
    """Delete expired counts; return how many."""
    return LoginFailure.objects.filter(at__lt=_since()).delete()[0]


def address_of(request: HttpRequest) -> str:
    """The address of a request; for IPv6 the network, since one household has very many addresses."""
    given = str(request.META.get("REMOTE_ADDR") or "")
    try:
        found = ipaddress.ip_address(given.partition("%")[0])
    except ValueError:
        return given
    if isinstance(found, ipaddress.IPv6Address) and not found.ipv4_mapped:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _login_keys(name: str, address: str) -> _Keys:
    name = name.strip().casefold()
    return (
        (_key("login", name, address), TRIES),
        (_key("name", name), TRIES_OF_NAME),
        (_key("logins", address), TRIES_OF_ADDRESS),
    )


def _token_keys(prefix: str, address: str) -> _Keys:
    if prefix:
        return ((_key("token", prefix, address), TRIES),)
    return ((_key("tokens", address), TRIES_OF_ADDRESS),)


def _count(keys: _Keys) -> list[int] | None:
    """Count an attempt; None if there are too many, and then it is not counted, so that waiting helps."""
    tries = [row.pk for row in LoginFailure.objects.bulk_create([LoginFailure(key=key) for key, _ in keys])]
    recent = LoginFailure.objects.filter(at__gte=_since())
    if any(recent.filter(key=key).count() > most for key, most in keys):
        LoginFailure.objects.filter(pk__in=tries).delete()
        return None
    return tries


def _wait_seconds(keys: _Keys) -> float:
    waits = 0.0
    for key, most in keys:
        times = LoginFailure.objects.filter(key=key, at__gte=_since()).order_by("-at").values_list("at", flat=True)
        newest = list(times[:most])
        if len(newest) == most:
            waits = max(waits, (newest[-1] - _since()).total_seconds())
    return waits


def _since() -> datetime:
    return timezone.now() - timedelta(seconds=WINDOW_SECONDS)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
