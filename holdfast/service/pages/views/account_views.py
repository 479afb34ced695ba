"""The user's own account: password, API tokens, secrets, hooks."""

from datetime import timedelta
from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from holdfast.core.errors import HoldfastError
from holdfast.service.jobs import api_tokens, notices, secrets
from holdfast.service.jobs.models import ApiToken, Hook, Secret, TokenScope
from holdfast.service.jobs.shown_errors import error_line
from holdfast.service.pages.account_page import read_account

CAME_BY_LINK = "came_by_link"  # in the session: the old password is not asked for
# What is shown once travels in a signed cookie: the server stores it nowhere, and a reload shows nothing.
_FRESH = {"fresh_token": "holdfast_token", "fresh_key": "holdfast_hook_key"}
_FRESH_SECONDS = 60


@never_cache
@require_safe
@login_required
def show_account(request: HttpRequest) -> HttpResponse:
    """The account page, with what was just created."""
    fresh = {name: _fresh(request, cookie) for name, cookie in _FRESH.items()}
    answer = _page(request, **fresh)
    for name, cookie in _FRESH.items():
        if fresh[name]:
            answer.delete_cookie(cookie, path=request.path, samesite="Strict")
    return answer


@never_cache
@require_POST
@login_required
def make_token(request: HttpRequest) -> HttpResponse:
    """Create a token; the page shows it once."""
    days = request.POST.get("days", "")
    expires = timezone.now() + timedelta(days=int(days)) if days in ("30", "90", "365") else None
    scope = request.POST.get("scope", "")
    scope = scope if scope in TokenScope.values else TokenScope.READ
    try:
        _, text = api_tokens.make_token(_me(request), request.POST.get("name", ""), scope=scope, expires=expires)
    except HoldfastError as error:
        return _page(request, problem=error_line(error), part="tokens")
    return _shown_once(request, "fresh_token", text)


@require_POST
@login_required
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Revoke a token."""
    token = get_object_or_404(ApiToken, pk=pk, owner=_me(request))
    token.delete()
    messages.success(request, f"Revoked the token {token.name}.")
    return redirect("account")


@never_cache
@sensitive_post_parameters("value")
@require_POST
@login_required
def keep_secret(request: HttpRequest) -> HttpResponse:
    """Save a secret; it is never shown again."""
    try:
        kept = secrets.keep_secret(_me(request), request.POST.get("name", ""), request.POST.get("value", ""))
    except HoldfastError as error:
        return _page(request, problem=error_line(error), part="secrets")
    messages.success(request, f"Saved {kept.name}. Your runs can use it; nobody can read it here.")
    return redirect("account")


@require_POST
@login_required
def remove_secret(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a secret."""
    secret = get_object_or_404(Secret, pk=pk, owner=_me(request))
    secret.delete()
    messages.success(request, f"Deleted {secret.name}.")
    return redirect("account")


@never_cache
@require_POST
@login_required
def make_hook(request: HttpRequest) -> HttpResponse:
    """Add a webhook or an email address; the signing key of a webhook is shown once."""
    given = request.POST
    try:
        hook = notices.make_hook(
            _me(request),
            given.get("kind", ""),
            given.get("target", ""),
            on_finish="on_finish" in given,
            on_trouble="on_trouble" in given,
        )
    except HoldfastError as error:
        return _page(request, problem=error_line(error), part="hooks")
    if hook.key:
        return _shown_once(request, "fresh_key", hook.key)
    messages.success(request, f"Added {hook.target}.")
    return redirect("account")


@require_POST
@login_required
def remove_hook(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a hook."""
    hook = get_object_or_404(Hook, pk=pk, owner=_me(request))
    hook.delete()
    messages.success(request, f"Deleted {hook.target}.")
    return redirect("account")


@require_POST
@login_required
def test_hook(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a test message to a hook."""
    hook = get_object_or_404(Hook, pk=pk, owner=_me(request))
    try:
        delivery = notices.send_test(hook)
    except HoldfastError as error:
        messages.error(request, f"{hook.target}: {error_line(error)}")
        return redirect("account")
    say = messages.success if delivery.arrived else messages.error
    say(request, f"{hook.target}: {delivery.said or ('delivered' if delivery.arrived else 'not delivered')}")
    return redirect("account")


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def change_password(request: HttpRequest) -> HttpResponse:
    """Set or change the password. Users without one, or who logged in with a one-time link, need no old password."""
    user = _me(request)
    is_free = bool(request.session.get(CAME_BY_LINK)) or not user.has_usable_password()
    form_type = SetPasswordForm if is_free else PasswordChangeForm
    form = form_type(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        form.save()
        update_session_auth_hash(request, user)  # this session stays valid, all others end
        request.session.pop(CAME_BY_LINK, None)
        messages.success(request, "Password set. All your other sessions are logged out.")
        return redirect("account" if not is_free else "runs")
    return render(request, "pages/password.html", {"form": form, "is_first": is_free})


def _shown_once(request: HttpRequest, name: str, text: str) -> HttpResponse:
    answer = redirect("account")
    answer.set_signed_cookie(
        _FRESH[name],
        text,
        salt=_salt(request),
        max_age=_FRESH_SECONDS,
        path=answer.url,
        secure=settings.TLS,
        httponly=True,
        samesite="Strict",
    )
    return answer


def _fresh(request: HttpRequest, cookie: str) -> str:
    return request.get_signed_cookie(cookie, "", salt=_salt(request), max_age=_FRESH_SECONDS) or ""


def _salt(request: HttpRequest) -> str:
    return f"shown once to {_me(request).pk}"


def _me(request: HttpRequest) -> User:
    return cast(User, request.user)


def _page(request: HttpRequest, **fresh: str) -> HttpResponse:
    page = read_account(_me(request), **fresh)
    return render(request, "pages/account.html", {"page": page}, status=400 if page.problem else 200)
