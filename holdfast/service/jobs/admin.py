"""People and teams, and what else an administrator may look after, in Django's own admin.

What a secret, a token or a link is made of is never shown; how a job stands is changed by leases alone.
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
admin.site.index_title = "People, teams and records"


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Rows that are looked at here and changed elsewhere."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Made by the service itself."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Changed by the service itself."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Its files would stay behind: deleted on its own page."""
        return False


class RemovableAdmin(ReadOnlyAdmin):
    """Rows that an administrator may only look at or take away."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """For administrators."""
        return bool(getattr(request.user, "is_superuser", False))


class PeopleAdmin(UserAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Django's own page of people, with a link for who has forgotten the password."""

    list_display = ("username", "email", "is_active", "is_superuser", "last_login")
    actions = ("let_in",)

    @admin.action(description="Create a one-time login link for the selected users")
    def let_in(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        """Show a link for each; older ones of theirs end."""
        if not getattr(request.user, "is_superuser", False):
            self.message_user(request, "Only administrators may create links.", messages.ERROR)
            return
        for user in chosen.filter(is_active=True)[:20]:
            address = request.build_absolute_uri(make_link(user))
            self.message_user(request, f"{user.get_username()}: {address} (once, within {LINK_HOURS} hours)")


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
    """Machines; one that is gone for good may be taken off the list."""

    list_display = ("name", "host", "slots", "version", "beat")
    exclude = ("checkup",)


@admin.register(ApiToken)
class TokenAdmin(RemovableAdmin):
    """Keys to the API: who has which, and an end to them."""

    list_display = ("name", "owner", "prefix", "may_write", "created", "expires", "used")
    search_fields = ("name", "owner__username")
    list_select_related = ("owner",)
    exclude = ("sha256",)


@admin.register(Secret)
class SecretAdmin(RemovableAdmin):
    """Names of secrets, never what they are."""

    list_display = ("name", "owner", "created")
    list_select_related = ("owner",)
    exclude = ("sealed",)


@admin.register(Hook)
class HookAdmin(RemovableAdmin):
    """Where news goes."""

    list_display = ("target", "kind", "owner", "on_finish", "on_trouble")
    list_select_related = ("owner",)
    exclude = ("key",)


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    """News, and how it got through."""

    list_display = ("event", "job", "hook", "tries", "sent", "said")
    list_select_related = ("job", "hook")
