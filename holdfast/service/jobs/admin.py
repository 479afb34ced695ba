"""Users, teams and records in Django's admin.

Secrets, tokens and links are never shown; the state of a job is changed only by `leases.py`.
"""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest

from holdfast.service.first_login import LINK_HOURS, make_link
from holdfast.service.jobs.models import ApiToken, Dataset, Hook, Job, Notice, Secret, TrainedModel, Worker

admin.site.site_header = admin.site.site_title = "Holdfast"
admin.site.index_title = "Users, teams and records"


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Rows that are only shown here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Created by the service itself."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Changed by the service itself."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Deleted on its own page, together with its files."""
        return False


class RemovableAdmin(ReadOnlyAdmin):
    """Rows that an administrator may only view or delete."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Administrators only."""
        return bool(getattr(request.user, "is_superuser", False))


class PeopleAdmin(UserAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Django's page of users, with login links for users who forgot their password."""

    list_display = ("username", "email", "is_active", "is_superuser", "last_login")
    actions = ("let_in",)

    @admin.action(description="Create a one-time login link for the selected users")
    def let_in(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        """Show a link for each user; their older links stop working."""
        if not getattr(request.user, "is_superuser", False):
            self.message_user(request, "Only administrators may create links.", messages.ERROR)
            return
        for user in chosen.filter(is_active=True)[:20]:
            address = request.build_absolute_uri(make_link(user))
            self.message_user(request, f"{user.get_username()}: {address} (works once, within {LINK_HOURS} hours)")


admin.site.unregister(User)
admin.site.register(User, PeopleAdmin)


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Runs."""

    list_display = ("id", "name", "owner", "team", "state", "worker", "created")
    list_filter = ("state", "team")
    search_fields = ("name", "owner__username")
    list_select_related = ("owner", "team", "worker")


@admin.register(Dataset)
class DatasetAdmin(ReadOnlyAdmin):
    """Uploads."""

    list_display = ("id", "name", "owner", "team", "state", "size_bytes", "created")
    list_filter = ("state", "team")
    search_fields = ("name", "file_name", "owner__username")
    list_select_related = ("owner", "team")


@admin.register(TrainedModel)
class ModelAdmin(ReadOnlyAdmin):
    """The registry."""

    list_display = ("id", "name", "version", "stage", "task", "owner", "team", "created")
    list_filter = ("stage", "task", "team")
    search_fields = ("name", "owner__username")
    list_select_related = ("owner", "team")


@admin.register(Worker)
class WorkerAdmin(RemovableAdmin):
    """Machines; one that is gone for good may be deleted."""

    list_display = ("name", "host", "slots", "version", "beat")
    exclude = ("checkup",)


@admin.register(ApiToken)
class TokenAdmin(RemovableAdmin):
    """API tokens of all users, to view and revoke."""

    list_display = ("name", "owner", "prefix", "scope", "created", "expires", "used")
    search_fields = ("name", "owner__username")
    list_select_related = ("owner",)
    exclude = ("sha256",)


@admin.register(Secret)
class SecretAdmin(RemovableAdmin):
    """Names of secrets, never their values."""

    list_display = ("name", "owner", "created")
    list_select_related = ("owner",)
    exclude = ("sealed",)


@admin.register(Hook)
class HookAdmin(RemovableAdmin):
    """Webhooks and email addresses."""

    list_display = ("target", "kind", "owner", "on_finish", "on_trouble")
    list_select_related = ("owner",)
    exclude = ("key",)


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    """Notifications and their delivery."""

    list_display = ("event", "job", "hook", "tries", "sent", "said")
    list_select_related = ("job", "hook")
