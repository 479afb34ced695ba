"""The jobs app."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The name of this app."""

    name = "holdfast.service.jobs"
