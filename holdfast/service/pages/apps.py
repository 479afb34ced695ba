"""The pages app."""

from django.apps import AppConfig


class PagesConfig(AppConfig):
    """The name of this app."""

    name = "holdfast.service.pages"
