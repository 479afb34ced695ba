"""The addresses of the API, the admin and the pages."""

from django.contrib import admin
from django.urls import include, path

from holdfast.service.jobs.api import api

urlpatterns = [
    path("api/", api.urls),
    path("admin/", admin.site.urls),
    path("", include("holdfast.service.pages.urls")),
]

_PROBLEMS = "holdfast.service.pages.views.login_views"
handler400, handler403 = f"{_PROBLEMS}.bad_request", f"{_PROBLEMS}.forbidden"
handler404, handler500 = f"{_PROBLEMS}.not_found", f"{_PROBLEMS}.server_error"
