"""Login, one-time links, and the error pages."""

from typing import Any

from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from holdfast.core.text import human_seconds
from holdfast.service.first_login import owner_of_link, use_link
from holdfast.service.jobs.limits import address_of, login_wait_seconds
from holdfast.service.pages.views.account_views import CAME_BY_LINK


class LogIn(LoginView):
    """Login by name and password."""

    template_name = "pages/login.html"
    redirect_authenticated_user = True

    def get_form(self, form_class: type[AuthenticationForm] | None = None) -> AuthenticationForm:
        """The form with our own message."""
        form = super().get_form(form_class)
        form.error_messages["invalid_login"] = "Wrong name or password."
        return form

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the form again, with how long to wait after too many attempts."""
        name = str(self.request.POST.get("username", ""))
        wait = login_wait_seconds(name, address_of(self.request))
        return self.render_to_response(self.get_context_data(form=form, wait=human_seconds(wait) if wait else ""))

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        """What the template shows."""
        return super().get_context_data(**{"wait": "", **more})


@never_cache
@require_http_methods(("GET", "HEAD", "POST"))
def enter_once(request: HttpRequest, token: str) -> HttpResponse:
    """Log in the owner of a link, once, and ask for a password.

    The link is used up by the button, not by opening it: chat and mail programs open links that pass through them.
    """
    is_entering = request.method == "POST"
    user = use_link(token) if is_entering else owner_of_link(token)
    if user is None:
        return render(request, "pages/once_used.html", status=410)
    if not is_entering:
        return render(request, "pages/once.html", {"name": user.get_username()})
    login(request, user, backend="holdfast.service.jobs.limits.LimitedBackend")
    request.session[CAME_BY_LINK] = True
    messages.success(
        request, f"Welcome, {user.get_username()}. This link works only once: choose a password for next time."
    )
    return redirect("password")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400."""
    if isinstance(exception, DisallowedHost):
        words = "This service does not accept that host name. Its administrator can add it to HOLDFAST_HOSTS."
        return _problem(request, 400, "Unknown host name", words)
    return _problem(request, 400, "Bad request", "The server could not read the request.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403."""
    return _problem(request, 403, "Not allowed", "You do not have permission to do this.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: it does not exist, or not for this user; the page does not tell which."""
    return _problem(request, 404, "Not found", "It was deleted, is not shared with you, or never existed.")


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form that has expired or came from another site."""
    words = "The form has expired, or came from another site. Go back, reload the page and send it again."
    return _problem(request, 403, "Form rejected", words)


def server_error(request: HttpRequest) -> HttpResponse:
    """500: without the database, which may be the cause."""
    return render(request, "500.html", status=500)


def _problem(request: HttpRequest, status: int, title: str, words: str) -> HttpResponse:
    context = {"title": title, "words": words, "status": status}
    return render(request, "pages/problem.html", context, status=status)
