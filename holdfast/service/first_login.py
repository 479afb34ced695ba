"""The first login: the first user of a new service, and one-time links that log their owner in."""

import getpass
import hashlib
import re
import secrets
from datetime import timedelta

from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from holdfast.service.jobs.models import OneTimeLink

LINK_HOURS = 24


def first_user(name: str = "") -> User:
    """The administrator who runs the service; created without a password if there is none yet."""
    if found := User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first():
        return found
    wanted = re.sub(r"[^\w.@+-]", "", name or _system_name())[:150] or "admin"
    user, is_new = User.objects.get_or_create(username=wanted)
    user.is_staff = user.is_superuser = user.is_active = (
        True  # without any administrator, the person who runs the service becomes one
    )
    if is_new:
        user.set_unusable_password()
    user.save()
    return user


def has_password_user() -> bool:
    """Whether anyone can log in with a name and a password."""
    return any(user.has_usable_password() for user in User.objects.filter(is_active=True))


def make_link(user: User) -> str:
    """Make a one-time link and return its path; only its hash is kept, and older links of the user are removed."""
    token = secrets.token_urlsafe(24)
    OneTimeLink.objects.filter(Q(owner=user) | Q(expires__lt=timezone.now())).delete()
    OneTimeLink.objects.create(
        owner=user,
        sha256=hashlib.sha256(token.encode()).hexdigest(),
        expires=timezone.now() + timedelta(hours=LINK_HOURS),
    )
    return f"/once/{token}"


def owner_of_link(token: str) -> User | None:
    """The owner of a valid link; looking does not use it up."""
    found = _find(token)
    return found.owner if found else None


def use_link(token: str) -> User | None:
    """Use up a link and return its owner; None when it is unknown, used or expired. Of two uses at once, one wins."""
    found = _find(token)
    if found is None:
        return None
    deleted, _ = OneTimeLink.objects.filter(pk=found.pk, sha256=found.sha256).delete()
    return found.owner if deleted else None


def _find(token: str) -> OneTimeLink | None:
    sha256 = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
    found = OneTimeLink.objects.filter(sha256=sha256, expires__gt=timezone.now(), owner__is_active=True)
    return found.select_related("owner").first()


def _system_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id, as in many containers
        return "admin"
