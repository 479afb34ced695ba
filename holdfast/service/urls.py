"""Where each page and the API live."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("holdfast.service.pages.urls")),
]
