"""The service's settings with a temporary home folder and fast password hashes."""

import os
import tempfile

os.environ.setdefault("HOLDFAST_HOME", tempfile.mkdtemp(prefix="holdfast-test-home-"))

from holdfast.service.settings import *  # noqa: F403  (all of them, as Django reads settings)

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# A file: threads that share a database in memory lock each other out, as those of a real one do not.
DATABASES["default"]["TEST"] = {"NAME": f"{os.environ['HOLDFAST_HOME']}/test.sqlite3"}  # noqa: F405  (of them)
