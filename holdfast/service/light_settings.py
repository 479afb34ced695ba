"""The settings of processes that serve no pages: keepers and dispatchers start sooner without their parts."""

from holdfast.service.settings import *  # noqa: F403  (these are those settings, and more)

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "holdfast.service.jobs"]
MIDDLEWARE = []
TEMPLATES = []
