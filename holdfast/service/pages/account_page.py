"""What the account page shows: a user, their tokens, secrets and hooks; never the value of a secret."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db.models import OuterRef, Subquery
from django.utils import timezone

from holdfast.service.jobs.models import ApiToken, Hook, HookKind, Notice, TokenScope
from holdfast.service.jobs.secrets import ALLOWED_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An API token, without its text."""

    pk: int
    name: str
    prefix: str
    scope: str
    created: datetime
    used: datetime | None
    expires: datetime | None
    has_expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow:
    """A hook and its last delivery."""

    pk: int
    kind: str
    target: str
    when: str
    said: str
    sent: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountPage:
    """One user."""

    name: str
    email: str
    is_admin: bool
    has_password: bool
    teams: Sequence[str]
    tokens: Sequence[Token]
    secrets: Sequence[tuple[int, str, datetime]]
    hooks: Sequence[HookRow]
    secret_names: str = ALLOWED_NAMES
    fresh_token: str = ""  # shown once
    fresh_key: str = ""  # of a webhook, shown once
    problem: str = ""
    part: str = ""  # which form the problem belongs to

    @property
    def scopes(self) -> Sequence[tuple[str, str]]:
        """What a new token may do: each value with its words."""
        return tuple(TokenScope.choices)


def read_account(user: User, **fresh: str) -> AccountPage:
    """Everything that a user's own page shows."""
    return AccountPage(
        name=user.get_username(),
        email=user.email,
        is_admin=user.is_superuser,
        has_password=user.has_usable_password(),
        teams=list(user.groups.order_by("name").values_list("name", flat=True)),
        tokens=[_token(token) for token in ApiToken.objects.filter(owner=user).order_by("-pk")],
        secrets=list(user.secrets.order_by("name").values_list("pk", "name", "created")),
        hooks=[_hook(hook) for hook in _hooks(user)],
        **fresh,
    )


def _token(token: ApiToken) -> Token:
    return Token(
        pk=token.pk,
        name=token.name,
        prefix=token.prefix,
        scope=token.get_scope_display(),
        created=token.created,
        used=token.used,
        expires=token.expires,
        has_expired=token.expires is not None and token.expires <= timezone.now(),
    )


def _hooks(user: User) -> Sequence[Hook]:
    latest = Notice.objects.filter(hook=OuterRef("pk")).order_by("-pk")
    found = Hook.objects.filter(owner=user).order_by("-pk")
    return list(found.annotate(said=Subquery(latest.values("said")[:1]), sent=Subquery(latest.values("sent")[:1])))


def _hook(hook: Hook) -> HookRow:
    both = {(True, True): "finish and failure", (True, False): "finish", (False, True): "failure"}
    return HookRow(
        pk=hook.pk,
        kind="email" if hook.kind == HookKind.EMAIL else hook.kind,
        target=hook.target,
        when=both.get((hook.on_finish, hook.on_trouble), "nothing"),
        said=getattr(hook, "said", None) or "",
        sent=getattr(hook, "sent", None),
    )
