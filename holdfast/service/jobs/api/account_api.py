"""The user's own tokens, secrets and hooks. Nobody else sees any of them."""

from datetime import timedelta
from typing import Any

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Status

from holdfast.service.jobs.api.api_errors import REFUSALS, Forbidden, NotFound, Refusal
from holdfast.service.jobs.api.auth import person, token_of
from holdfast.service.jobs.api.schemas import (
    HookIn,
    HooksOut,
    HookTestOut,
    Id,
    MeOut,
    NewHookOut,
    NewTokenOut,
    SecretIn,
    SecretOut,
    SecretsOut,
    Text,
    TokenIn,
    TokensOut,
)
from holdfast.service.jobs.api_tokens import make_token
from holdfast.service.jobs.models import ApiToken, Hook, Secret, TokenScope
from holdfast.service.jobs.notices import make_hook, send_test
from holdfast.service.jobs.secrets import keep_secret

router = Router(tags=["account"])


@router.get("/me", response={200: MeOut, REFUSALS: Refusal})
def who_am_i(request: HttpRequest) -> Any:
    """The user and the token in use."""
    user, token = person(request), token_of(request)
    return {
        "name": user.get_username(),
        "is_admin": user.is_superuser,
        "teams": list(user.groups.order_by("name").values_list("name", flat=True)),
        "token": token.name if token else None,
        "scope": token.scope if token else TokenScope.ADMIN,
    }


@router.get("/tokens", response={200: TokensOut, REFUSALS: Refusal})
def list_tokens(request: HttpRequest) -> Any:
    """Your tokens, without their texts."""
    return {"items": [_token(one) for one in ApiToken.objects.filter(owner=person(request)).order_by("-pk")]}


@router.post("/tokens", response={201: NewTokenOut, REFUSALS: Refusal})
def new_token(request: HttpRequest, payload: TokenIn) -> Any:
    """Create a token; its text is shown only once. A token cannot create one that outlives it."""
    asking = token_of(request)
    expires = timezone.now() + timedelta(days=payload.days) if payload.days else None
    if asking and asking.expires and (expires is None or expires > asking.expires):
        raise Forbidden("a token cannot create a longer-lived one", found=f"it expires at {asking.expires.isoformat()}")
    token, text = make_token(person(request), payload.name, scope=payload.scope, expires=expires, maker=asking)
    return Status(201, {**_token(token), "token": text})


@router.delete("/tokens/{token_id}", response={204: None, REFUSALS: Refusal})
def delete_token(request: HttpRequest, token_id: Id) -> Any:
    """Revoke a token, and every token that was created with it."""
    return _deleted(ApiToken.objects.filter(owner=person(request), pk=token_id), f"there is no token {token_id}")


@router.get("/secrets", response={200: SecretsOut, REFUSALS: Refusal})
def list_secrets(request: HttpRequest) -> Any:
    """The names of your secrets; their values are given only to your runs."""
    return {"items": [_secret(one) for one in Secret.objects.filter(owner=person(request)).order_by("name")]}


@router.put("/secrets", response={200: SecretOut, REFUSALS: Refusal})
def set_secret(request: HttpRequest, payload: SecretIn) -> Any:
    """Save a secret for your runs, encrypted; one with the same name is replaced."""
    return _secret(keep_secret(person(request), payload.name, payload.value))


@router.delete("/secrets/{name}", response={204: None, REFUSALS: Refusal})
def delete_secret(request: HttpRequest, name: Text) -> Any:
    """Delete a secret."""
    return _deleted(Secret.objects.filter(owner=person(request), name=name), "there is no secret with this name")


@router.get("/hooks", response={200: HooksOut, REFUSALS: Refusal})
def list_hooks(request: HttpRequest) -> Any:
    """Your webhooks and email addresses for notifications."""
    return {"items": [_hook(one) for one in Hook.objects.filter(owner=person(request)).order_by("-pk")]}


@router.post("/hooks", response={201: NewHookOut, REFUSALS: Refusal})
def new_hook(request: HttpRequest, payload: HookIn) -> Any:
    """Add a webhook or an email address for notifications. The signing key is shown only once."""
    hook = make_hook(
        person(request), payload.kind, payload.target, on_finish=payload.on_finish, on_trouble=payload.on_trouble
    )
    return Status(201, {**_hook(hook), "key": hook.key})


@router.post("/hooks/{hook_id}/test", response={200: HookTestOut, REFUSALS: Refusal})
def test_hook(request: HttpRequest, hook_id: Id) -> Any:
    """Send a test message now."""
    hook = Hook.objects.filter(owner=person(request), pk=hook_id).first()
    if hook is None:
        raise NotFound(f"there is no hook {hook_id}")
    delivery = send_test(hook)
    return {"arrived": delivery.arrived, "said": delivery.said}


@router.delete("/hooks/{hook_id}", response={204: None, REFUSALS: Refusal})
def delete_hook(request: HttpRequest, hook_id: Id) -> Any:
    """Delete a hook."""
    return _deleted(Hook.objects.filter(owner=person(request), pk=hook_id), f"there is no hook {hook_id}")


def _deleted(rows: "QuerySet[Any]", words: str) -> Status[None]:
    if not rows.delete()[0]:
        raise NotFound(words)
    return Status(204, None)


def _token(token: ApiToken) -> dict[str, Any]:
    return _same(token, "name", "prefix", "scope", "created", "expires", "used")


def _secret(secret: Secret) -> dict[str, Any]:
    return {"name": secret.name, "created": secret.created}


def _hook(hook: Hook) -> dict[str, Any]:
    return _same(hook, "kind", "target", "on_finish", "on_trouble", "created")


def _same(row: Model, *names: str) -> dict[str, Any]:
    return {"id": row.pk, **{name: getattr(row, name) for name in names}}
