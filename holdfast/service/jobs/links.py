"""Uses one-time links: each lets its owner in once and is gone with that."""

import hashlib

from django.contrib.auth.models import User
from django.utils import timezone

from holdfast.service.jobs.models import OneTimeLink


def owner_of_link(token: str) -> User | None:
    """The person whom a link would let in; looking does not use it up."""
    found = _find(token)
    return found.owner if found else None


def use_link(token: str) -> User | None:
    """The person whom a link lets in; None where it was used, has expired, or never was. Two uses at once: one wins."""
    found = _find(token)
    if found is None:
        return None
    deleted, _ = OneTimeLink.objects.filter(pk=found.pk, sha256=found.sha256).delete()
    return found.owner if deleted else None


def _find(token: str) -> OneTimeLink | None:
    sha256 = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
    found = OneTimeLink.objects.filter(sha256=sha256, expires__gt=timezone.now(), owner__is_active=True)
    return found.select_related("owner").first()
