"""Django settings for processes that serve no pages: agents and dispatchers start faster without those apps."""

from holdfast.service.settings import *  # noqa: F403  (the same settings, with fewer apps)

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "holdfast.service.jobs"]
MIDDLEWARE = []
TEMPLATES = []
