"""The pages app."""

from django.apps import AppConfig


class PagesConfig(AppConfig):
    """Its name in the registry of apps."""

    name = "holdfast.service.pages"
