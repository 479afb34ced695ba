"""The jobs app."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Its name in the registry of apps."""

    name = "holdfast.service.jobs"
