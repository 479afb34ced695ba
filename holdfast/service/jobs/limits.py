"""Slows down whoever guesses: passwords by name and address, by name from everywhere, and by address; tokens by their
beginning and address; and who sends many tests of hooks, which go to any address.

A try is counted in the database before it is looked at, so that several web processes, or several tries at once, do not
have more of them than one. What is right takes its own count away.
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
TRIES_OF_NAME = 40  # for one name from all addresses; whom others keep out so, a one-time link lets in
TRIES_OF_ADDRESS = 60  # for all names from one address
TESTS = 5  # of hooks, for one person

_Keys = tuple[tuple[str, int], ...]  # each with how many tries it has


class TooMany(RequestError):
    """Wait."""

    status = 429

    def __init__(self, what: str, *, wait_seconds: float):
        super().__init__(what, seen=f"wait {wait_seconds:.0f} s")
        self.wait_seconds = wait_seconds


class LimitedBackend(ModelBackend):
    """Django's own check of a password, for so many tries: on the login page, in the admin, wherever one is asked."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> User | None:
        """The user whose name and password these are; nobody while there were too many wrong tries."""
        if request is None or username is None or password is None:
            return super().authenticate(request, username, password, **more)
        keys = _login_keys(username, address_of(request))
        tries = _count(keys)
        if tries is None:
            raise PermissionDenied  # the password is not even looked at
        user = super().authenticate(request, username, password, **more)
        if user is not None:
            # Other tries at this address, and at this name elsewhere, stay counted: they were not this person's.
            LoginFailure.objects.filter(Q(key=keys[0][0]) | Q(pk__in=tries)).delete()
        return user


def login_wait_seconds(name: str, address: str) -> float:
    """How long this name has to wait at this address; 0 where it may try."""
    return _wait_seconds(_login_keys(name, address))


def token_wait_seconds(prefix: str, address: str) -> float:
    """How long tokens with this beginning have to wait at this address; 0 where one may be tried."""
    return _wait_seconds(_token_keys(prefix, address))


def count_wrong_token(prefix: str, address: str) -> None:
    """Remember a wrong token; an unknown beginning counts for all of them."""
    _count(_token_keys(prefix, address))


def count_test(person: User) -> None:
    """Count a test of a hook; refuse it where this person has sent too many."""
    keys = ((_key("test", str(person.pk)), TESTS),)
    if _count(keys) is None:
        what = f"{TESTS} test messages were sent within {WINDOW_SECONDS // 60} minutes"
        raise TooMany(what, wait_seconds=max(1.0, _wait_seconds(keys)))


def forget_old() -> int:
    """Remove what no longer slows anybody down."""
    return LoginFailure.objects.filter(at__lt=_since()).delete()[0]


def address_of(request: HttpRequest) -> str:
    """Where a request comes from; of IPv6 the network, since one household has very many addresses."""
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
    """Count a try; None where there are too many, and then it is not kept, so that waiting helps."""
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
