"""API tokens: shown once, stored as a hash.

A token is `hfk_` and 40 letters and digits. Its first twelve characters find the row; the hash of the whole is compared
in constant time.
"""

import hashlib
import hmac
import secrets
import string
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from holdfast.core.errors import RequestError
from holdfast.service.jobs.models import ApiToken, TokenScope

_START = "hfk_"
_ALPHABET = string.ascii_letters + string.digits
_RANDOM = 40
_PREFIX = 12
_MOST_TOKENS = 50
_USED_EVERY = timedelta(minutes=1)


def make_token(
    owner: User,
    name: str,
    *,
    scope: str = TokenScope.SUBMIT,
    expires: datetime | None = None,
    maker: ApiToken | None = None,  # the token that asks for it
) -> tuple[ApiToken, str]:
    """Create a token; its text is returned here and never again."""
    name = " ".join(name.split())
    problems = []
    if not 1 <= len(name) <= 100 or not name.isprintable():
        problems.append("the name must have 1 to 100 printable characters")
    if expires is not None and expires <= timezone.now():
        problems.append("the expiry date is in the past")
    if ApiToken.objects.filter(owner=owner).count() >= _MOST_TOKENS:
        problems.append(f"you already have {_MOST_TOKENS} tokens, the maximum")
    if problems:
        raise RequestError("the token cannot be created", found="; ".join(problems))
    text = _START + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM))
    token = ApiToken.objects.create(
        owner=owner,
        name=name,
        prefix=text[:_PREFIX],
        sha256=_hash(text),
        scope=scope,
        expires=expires,
        maker=maker,
    )
    return token, text


def make_token_for(user: str | None, name: str, *, scope: str, days: int | None) -> str:
    """Create a token for a user by name, or for the only user; for someone on the server itself."""
    people = User.objects.filter(is_active=True, **({"username": user} if user else {})).order_by("username")
    if len(people) != 1:
        known = ", ".join(User.objects.values_list("username", flat=True)[:20])
        what = f"there is no user {user!r}" if user else "there is more than one user"
        raise RequestError(
            what, found=f"users: {known or 'none yet'}", try_next=("--user NAME",) if known else ("holdfast serve",)
        )
    expires = timezone.now() + timedelta(days=days) if days else None
    return make_token(people[0], name, scope=scope, expires=expires)[1]


def prefix_of(text: str) -> str:
    """The prefix that finds a token's row; empty if the text is not a token."""
    is_shaped = len(text) == len(_START) + _RANDOM and text.startswith(_START) and text.isascii()
    return text[:_PREFIX] if is_shaped else ""


def find_token(text: str) -> ApiToken | None:
    """The valid token with this text; None if it is wrong or expired, or its owner may not log in."""
    prefix = prefix_of(text)
    token = ApiToken.objects.select_related("owner").filter(prefix=prefix).first() if prefix else None
    is_right = hmac.compare_digest(_hash(text), token.sha256 if token else _hash(""))
    if token is None or not is_right or not token.owner.is_active:
        return None
    now = timezone.now()
    if token.expires is not None and token.expires <= now:
        return None
    if token.used is None or token.used < now - _USED_EVERY:  # a write per call would cost more than the call
        ApiToken.objects.filter(pk=token.pk).update(used=now)
    return token


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
