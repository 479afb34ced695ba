"""The first user of a fresh service: named after the person who starts it, let in by a link that works once."""

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
    """The person who runs the service; made, as an admin without a password, when there is nobody yet."""
    if found := User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first():
        return found
    wanted = re.sub(r"[^\w.@+-]", "", name or _system_name())[:150] or "admin"
    user, is_new = User.objects.get_or_create(username=wanted)
    user.is_staff = user.is_superuser = user.is_active = True  # where no admin is left, whoever runs the service is one
    if is_new:
        user.set_unusable_password()
    user.save()
    return user


def has_password_user() -> bool:
    """Whether anybody can log in by name and password."""
    return any(user.has_usable_password() for user in User.objects.filter(is_active=True))


def make_link(user: User) -> str:
    """A fresh one-time link's path for this user; only its hash is kept, and older ones end."""
    token = secrets.token_urlsafe(24)
    OneTimeLink.objects.filter(Q(owner=user) | Q(expires__lt=timezone.now())).delete()
    OneTimeLink.objects.create(
        owner=user,
        sha256=hashlib.sha256(token.encode()).hexdigest(),
        expires=timezone.now() + timedelta(hours=LINK_HOURS),
    )
    return f"/once/{token}"


def _system_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id, as in many containers
        return "admin"
